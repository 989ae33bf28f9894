"""deploy/systemd/inferd.service in the eyes of systemd itself."""

import subprocess
import sys
from pathlib import Path

from inferd_server.service_files import ServiceSettings, user_unit

UNIT = Path(__file__).parents[2] / "deploy/systemd/inferd.service"


def verify(file: Path, *flags: str) -> str:
    """What systemd says of a unit."""
    command = ["systemd-analyze", "verify", *flags, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return f"{done.stdout}{done.stderr}" if done.returncode == 0 else f"{done.returncode}: {done.stderr}"


def test_systemd_has_nothing_to_say_of_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "inferd.service"
    file.write_text(UNIT.read_text().replace("/opt/inferd/bin/inferd", sys.executable))
    assert verify(file) == ""
    file.write_text(file.read_text().replace("Restart=on-failure", "Restart=perhaps"))
    assert "perhaps" in verify(file)


def test_systemd_has_nothing_to_say_of_the_units_that_the_command_writes(tmp_path: Path) -> None:
    odd = '/srv/50% of $them "models"/it\'s \\ here.yaml'
    file = tmp_path / "inferd.service"
    file.write_text(user_unit(ServiceSettings([sys.executable, "-m", "inferd_server", odd], 78, tmp_path / "log")))
    assert verify(file) == ""
