"""The server's commands: clear lines, exit codes, and a flag for every setting."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from inferd_server import __main__ as server_commands
from inferd_server import demo
from inferd_server.__main__ import commands
from inferd_server.config import Config, rules
from inferd_server.config.settings import SETTINGS
from inferd_server.config.single import model_name
from inferd_server.telemetry import logs
from support import tiny_llama
from support.certificates import Authority

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Runs a command line."""
    runner = CliRunner()

    def run(*words: object, env: dict[str, str] | None = None) -> Result:
        return runner.invoke(commands, [str(word) for word in words], env=env)

    return run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Stands in for app: the configurations that were served; the exit code is 3."""
    configs: list[Config] = []

    async def serve(config: Config, *, announce: Callable[[str], None]) -> int:
        configs.append(config)
        announce("listening on 127.0.0.1:1")
        return 3

    monkeypatch.setitem(sys.modules, "inferd_server.app", SimpleNamespace(serve=serve))
    monkeypatch.setattr(logs, "configure", lambda *given: None)
    monkeypatch.setattr(server_commands, "_exit_now", _exit)  # the real one would end this process
    return configs


def _exit(code: int) -> NoReturn:
    raise typer.Exit(code)


@pytest.fixture
def file(tmp_path: Path, tiny_model: Path) -> Path:
    """A valid configuration."""
    file = tmp_path / "inferd.yaml"
    models = [{"name": "tiny", "path": str(tiny_model), "preload": True}]
    file.write_text(yaml.safe_dump({"manager": {"memory_budget_gb": 1}, "models": models}))
    return file


# --- serve --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--demo", "--model", "/x"], ["--config", "x", "--demo"]])
def test_serve_needs_exactly_one_source(run: Run, words: list[str]) -> None:
    result = run("serve", *words)
    assert result.exit_code == 2
    assert result.stderr == "error: serve needs exactly one of --config FILE, --model FOLDER and --demo\n"


def test_serve_gives_the_configuration_to_the_app_and_returns_its_exit_code(
    run: Run, served: list[Config], file: Path
) -> None:
    result = run("serve", "--config", file, "--listen", "127.0.0.1:0", "--log-format", "json")
    assert result.exit_code == 3
    assert result.stdout == "listening on 127.0.0.1:1\n"
    [config] = served
    assert (config.server.listen, config.logging.format) == ("127.0.0.1:0", "json")
    assert config.entries[0].name == "tiny"


def test_every_setting_is_a_flag_of_serve(
    run: Run, served: list[Config], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "IS_MACOS", True)
    pair = Authority().server_files(tmp_path)
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: []")
    other: dict[str, Any] = {
        "server.listen": "127.0.0.1:9",
        "server.defaults.continuous_batching": "false",
        "server.defaults.gpu_memory_utilization": "0.5",
        "server.defaults.top_p": "0.5",
        "server.defaults.min_p": "0.5",
        "logging.format": "json",
        "logging.level": "debug",
        "metrics.listen": "127.0.0.1:8",
        "server.reflection": "false",
        "auth.keys_file": str(keys),
        "auth.share_prefix_cache": "true",
        "auth.public_model_health": "true",
        "tracing.endpoint": "127.0.0.1:4317",
        "tracing.sample_ratio": "0.5",
        "tracing.insecure": "true",
        "tracing.record_prompts": "true",
        "server.socket_mode": "0660",
        "server.prevent_sleep": "true",
        "server.probe_listen": "127.0.0.1:7",
        "tls.certificate": pair.certificate,
        "tls.key": pair.key,
        "tls.client_ca": pair.authority,
    }
    words = [word for setting in SETTINGS for word in (setting.flag, other.get(setting.path, "7"))]
    assert run("serve", "--config", file, *words).exit_code == 3
    [config] = served
    for setting in SETTINGS:
        value: Any = config
        for key in setting.location:
            value = getattr(value, key)
        assert value != setting.default, setting.path


def test_variables_count_and_flags_outrank_them(run: Run, served: list[Config], file: Path) -> None:
    env = {"INFERD_MAX_QUEUE": "5", "INFERD_DRAIN_TIMEOUT_S": "6"}
    assert run("serve", "--config", file, "--max-queue", "9", env=env).exit_code == 3
    assert (served[0].server.max_queue, served[0].server.drain_timeout_s) == (9, 6)


def test_serve_refuses_an_open_address_unless_insecure(run: Run, served: list[Config], file: Path) -> None:
    result = run("serve", "--config", file, "--listen", "0.0.0.0:1")
    assert result.exit_code == 1
    assert "neither TLS nor keys" in result.stderr
    assert served == []
    assert run("serve", "--config", file, "--listen", "0.0.0.0:1", "--insecure").exit_code == 3


def test_serving_one_folder_names_it_and_says_its_budget(run: Run, served: list[Config], tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "my model")
    result = run("serve", "--model", folder)
    assert result.exit_code == 3
    [config] = served
    [entry] = config.entries
    assert (entry.name, entry.engine.path, entry.preload) == ("my-model", folder, True)
    assert entry.estimated_bytes < config.budget_nbytes
    assert f"serving {folder} as my-model" in result.stderr
    assert "5 % slack" in result.stderr


def test_a_folder_that_is_not_there_is_one_line(run: Run, served: list[Config]) -> None:
    result = run("serve", "--model", "/nowhere")
    assert (result.exit_code, result.stderr) == (1, "error: --model /nowhere: there is no folder /nowhere\n")


def test_a_hub_id_in_place_of_a_folder_says_how_to_fetch_it(run: Run, served: list[Config]) -> None:
    result = run("serve", "--model", "mlx-community/some-model-4bit")
    assert (result.exit_code, served) == (1, [])
    assert "`hf download ID --local-dir FOLDER`" in result.stderr


def test_the_help_of_serve_tells_defaults_as_the_file_has_them(run: Run) -> None:
    helped = run("serve", "--help").stdout
    assert "INFERD_REFLECTION=true" in helped
    assert "None" not in helped


def test_a_folder_without_a_model_says_what_is_missing(run: Run, served: list[Config], tmp_path: Path) -> None:
    result = run("serve", "--model", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"error: --model {tmp_path}: this is no model's folder: config.json is missing\n"
    (tmp_path / "config.json").write_text("{}")
    result = run("serve", "--model", tmp_path)
    assert result.stderr == f"error: --model {tmp_path}: no weights to serve: no weight files\n"
    assert served == []


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/a/Llama-3.2_1B.4bit", "Llama-3.2_1B.4bit"),
        ("/a/b c:d", "b-c-d"),
        ("/", "model"),
        ("/a/" + "x" * 200, "x" * 128),
    ],
)
def test_a_folders_name_becomes_a_models_name(folder: str, name: str) -> None:
    assert model_name(Path(folder)) == name


def test_serve_demo_prepares_the_models_and_serves_them(
    run: Run, served: list[Config], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prepare(directory: Path, progress: demo.Progress) -> list[Path]:
        asked.append(directory)
        for part in demo.MODELS:
            (tmp_path / part.name).symlink_to(tiny_model)
        return []

    monkeypatch.setattr(demo, "prepare", prepare)
    assert run("serve", "--demo", env={"INFERD_DEMO_DIR": str(tmp_path)}).exit_code == 3
    assert asked == [tmp_path]
    chat, embedder, colours = served[0].entries
    assert (chat.name, chat.aliases, chat.preload) == ("smollm2", ("demo",), True)
    assert (chat.defaults.temperature, chat.defaults.top_p) == (0.0, 1.0)
    assert (embedder.name, embedder.preload) == ("minilm", False)
    assert (colours.name, colours.preload) == ("colours", False)
    assert served[0].server.listen == "127.0.0.1:50051"


def test_a_demo_that_cannot_be_prepared_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: Path, progress: demo.Progress) -> list[Path]:
        raise demo.DemoError("no network")

    monkeypatch.setattr(demo, "prepare", fail)
    for command in (["serve", "--demo"], ["demo-model"]):
        result = run(*command)
        assert (result.exit_code, result.stderr) == (1, "error: no network\n")


@pytest.mark.parametrize(("words", "code"), [(["serve", "--demo"], 0), (["demo-model"], 143)])
def test_sigterm_while_preparing_is_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    def terminated(directory: Path, progress: demo.Progress) -> list[Path]:
        raise demo.Terminated

    monkeypatch.setattr(demo, "prepare", terminated)
    result = run(*words)
    assert (result.exit_code, result.stderr) == (code, "")


def test_an_address_that_is_taken_is_one_line(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(config: Config, *, announce: Callable[[str], None]) -> int:
        raise OSError(errno.EADDRINUSE, "can't listen on 127.0.0.1:1: in use")

    monkeypatch.setitem(sys.modules, "inferd_server.app", SimpleNamespace(serve=serve))
    monkeypatch.setattr(logs, "configure", lambda *given: None)
    result = run("serve", "--config", file)
    assert (result.exit_code, result.stderr) == (
        1,
        "error: can't listen on 127.0.0.1:1: in use; choose another address with --listen\n",
    )


# --- check and config ---------------------------------------------------------------------------------------------


def test_check_prints_the_plan_of_a_valid_file(run: Run, file: Path) -> None:
    result = run("check", file)
    assert result.exit_code == 0
    assert "budget: 1.00 GiB of weights" in result.stdout
    assert "preloads: tiny" in result.stdout
    assert result.stderr == ""


def test_check_lists_every_problem_on_stderr(run: Run, file: Path) -> None:
    file.write_text("manager: {}\nmodels: [{name: a}]\nx: 1\n")
    result = run("check", file)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"error: {file}: ") for line in lines)


def test_check_of_a_file_that_is_not_there_is_one_line(run: Run) -> None:
    result = run("check", "/nowhere.yaml")
    assert result.exit_code == 1
    assert result.stderr == "error: /nowhere.yaml: cannot be read: No such file or directory\n"


def test_config_init_prints_a_file_that_check_reads(run: Run, tmp_path: Path, tiny_model: Path) -> None:
    printed = run("config", "init")
    assert printed.exit_code == 0
    file = tmp_path / "new.yaml"
    file.write_text(printed.stdout.replace("/models/example", str(tiny_model)))
    assert run("check", file).exit_code == 0


def test_config_reference_prints_a_table(run: Run) -> None:
    assert run("config", "reference").stdout.startswith("| key | default |")
