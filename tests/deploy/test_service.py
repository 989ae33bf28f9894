"""`inferd service` with launchd and systemd that are fakes: what is written, and what is asked of them."""

import os
import plistlib
import shlex
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner, Result

from fakes import mac
from inferd_server import service_commands, service_managers
from inferd_server.__main__ import commands
from inferd_server.service_files import ServiceSettings, user_unit
from inferd_server.service_managers import ServiceError, manager_of

Run = Callable[..., Result]

LAUNCHD = """
case "$1" in
  print) [ -e "$STATE" ] || exit 113; echo "	state = running"; echo "	pid = 4711" ;;
  bootstrap) touch "$STATE" ;;
  bootout) (sleep 0.3; rm "$STATE") & ;;
esac
"""
SYSTEMD = """
case "$2" in
  show) cat "$STATE" 2>/dev/null || echo 0 ;;
  restart) echo 4711 > "$STATE" ;;
  disable) rm -f "$STATE" ;;
esac
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with a folder of programs in front of all others."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(tmp_path / "state"))
    return home


@pytest.fixture
def launchd(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A Mac; tells how launchctl was called."""
    mac.program(tmp_path / "bin", "launchctl", LAUNCHD)
    monkeypatch.setattr(service_commands, "manager_of", lambda: manager_of("darwin"))
    return lambda: mac.calls(tmp_path / "bin", "launchctl")


@pytest.fixture
def systemd(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A Linux; tells how systemctl was called."""
    mac.program(tmp_path / "bin", "systemctl", SYSTEMD)
    monkeypatch.setattr(service_commands, "manager_of", lambda: manager_of("linux"))
    return lambda: mac.calls(tmp_path / "bin", "systemctl")


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    file = tmp_path / "inferd.yaml"
    document = {
        "server": {"drain_delay_s": 1.5, "drain_timeout_s": 100},
        "manager": {"memory_budget_gb": 1},
        "models": [{"name": "tiny", "path": str(tiny_model)}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def run() -> Run:
    return lambda *words: CliRunner().invoke(commands, ["service", *map(str, words)])


def test_on_a_mac_an_agent_is_written_and_started(
    run: Run, launchd: Callable[[], list[str]], home: Path, config: Path
) -> None:
    file = home / "Library/LaunchAgents/local.inferd.server.plist"
    assert run("status").exit_code == 3
    done = run("install", "--config", config)
    assert (done.exit_code, done.stdout) == (0, f"installed as {file}\n")
    agent = plistlib.loads(file.read_bytes())
    assert agent["ProgramArguments"] == [sys.executable, "-m", "inferd_server", "serve", "--config", str(config)]
    assert agent["ExitTimeOut"] == 102 + 45
    assert Path(agent["StandardErrorPath"]).parent.is_dir()
    domain = f"gui/{os.getuid()}"
    assert launchd()[-1] == f"bootstrap {domain} {file}"
    assert run("status").stdout == "running, process 4711\n"
    assert f"bootout {domain}/local.inferd.server" not in launchd()


def test_on_a_mac_the_agent_before_has_ended_when_the_next_begins(
    run: Run, launchd: Callable[[], list[str]], home: Path, config: Path
) -> None:
    run("install", "--config", config)
    before = len(launchd())
    assert run("install", "--config", config).exit_code == 0
    words = [line.split()[0] for line in launchd()[before:]]
    assert words[:3] == ["print", "bootout", "print"]
    assert words[-2:] == ["print", "bootstrap"]
    assert run("uninstall").exit_code == 0
    assert not (home / "Library/LaunchAgents/local.inferd.server.plist").exists()
    assert (run("status").exit_code, run("uninstall").exit_code) == (3, 0)


def test_on_linux_a_unit_is_written_enabled_and_started(
    run: Run, systemd: Callable[[], list[str]], home: Path, config: Path
) -> None:
    file = home / ".config/systemd/user/inferd.service"
    assert run("status").exit_code == 3
    assert run("install", "--config", config).exit_code == 0
    text = file.read_text()
    assert f"ExecStart={sys.executable} -m inferd_server serve --config {config}\n" in text
    assert "TimeoutStopSec=147\n" in text
    user = "--user"
    assert systemd()[1:] == [f"{user} daemon-reload", f"{user} enable inferd.service", f"{user} restart inferd.service"]
    assert run("status").stdout == "running, process 4711\n"
    assert run("uninstall").exit_code == 0
    assert not file.exists()
    assert f"{user} disable --now inferd.service" in systemd()
    assert run("uninstall").exit_code == 0


def test_the_file_alone_may_be_printed(run: Run, systemd: Callable[[], list[str]], home: Path, config: Path) -> None:
    done = run("install", "--config", config, "--insecure", "--print")
    assert done.stdout.startswith("[Unit]\n")
    assert "--insecure" in done.stdout
    assert systemd() == []
    assert list(home.iterdir()) == []


def test_a_configuration_that_is_refused_installs_nothing(
    run: Run, systemd: Callable[[], list[str]], home: Path, config: Path
) -> None:
    config.write_text("models: []")
    done = run("install", "--config", config)
    assert done.exit_code == 1
    assert f"error: {config}: manager.memory_budget_gb: is required" in done.stderr
    assert list(home.iterdir()) == []


def test_an_installed_service_that_does_not_run(run: Run, systemd: Callable[[], list[str]], config: Path) -> None:
    run("install", "--config", config)
    Path(os.environ["STATE"]).unlink()
    done = run("status")
    assert (done.exit_code, done.stdout) == (1, "not running\n")


def test_what_the_manager_says_is_one_line(
    run: Run, systemd: Callable[[], list[str]], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mac.program(tmp_path / "bin", "systemctl", "echo Failed to connect to bus >&2\nexit 1")
    done = run("install", "--config", config)
    assert done.exit_code == 1
    assert done.stderr == "error: `systemctl --user daemon-reload` failed with 1: Failed to connect to bus\n"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert run("status").stderr == "error: there is no program systemctl here\n"


def test_an_agent_that_does_not_end_is_an_error(
    run: Run, launchd: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mac.program(tmp_path / "bin", "launchctl")
    minutes = SimpleNamespace(monotonic=count(0, 60).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(service_managers, "time", minutes)
    done = run("uninstall")
    assert done.exit_code == 1
    assert "still runs" in done.stderr


def test_elsewhere_there_is_no_manager() -> None:
    with pytest.raises(ServiceError, match="no service manager is known on sunos"):
        manager_of("sunos")


def test_words_of_a_unit_stay_the_words_they_are(tmp_path: Path) -> None:
    odd = ["/bin/x", "50% of $it", 'a "b" \\ c', "it's", ""]
    text = user_unit(ServiceSettings(odd, 78, tmp_path))
    [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    unescaped = line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$")
    assert shlex.split(unescaped) == odd
