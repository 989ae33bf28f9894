"""What `inferd service` asks of the system: launchd on macOS, systemd on Linux, each through its own program."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inferd_server.service_files import LABEL, UNIT, ServiceSettings, launch_agent, user_unit

COMMAND_SECONDS = 120.0
POLL_SECONDS = 0.2


class ServiceError(Exception):
    """Why it can't be done, for people."""


@dataclass(frozen=True, slots=True)
class Status:
    """`pid` 0: it does not run."""

    is_installed: bool
    pid: int


class ServiceManager(Protocol):
    """One way to run a service of this user."""

    file: Path

    def text(self, settings: ServiceSettings) -> str:
        """What its file holds."""
        ...

    def install(self, settings: ServiceSettings) -> None:
        """Write the file and start the service, in place of the one before. Raises ServiceError."""
        ...

    def uninstall(self) -> None:
        """Stop the service and remove its file. Raises ServiceError."""
        ...

    def status(self) -> Status:
        """How it is now. Raises ServiceError."""
        ...


def manager_of(platform: str = sys.platform) -> ServiceManager:
    """The manager of this system. Raises ServiceError where there is none."""
    if platform == "darwin":
        return Launchd()
    if platform == "linux":
        return Systemd()
    raise ServiceError(f"no service manager is known on {platform}: run `inferd serve` under your own")


class Launchd:
    """launchd, in the session of the user who is logged in."""

    def __init__(self) -> None:
        self.file = Path.home() / "Library/LaunchAgents" / f"{LABEL}.plist"
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{LABEL}"

    def text(self, settings: ServiceSettings) -> str:
        """See ServiceManager."""
        return launch_agent(settings)

    def install(self, settings: ServiceSettings) -> None:
        """See ServiceManager."""
        self._stop(settings.stop_seconds)
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        _write(self.file, launch_agent(settings))
        _checked("launchctl", "bootstrap", self._domain, str(self.file))

    def uninstall(self) -> None:
        """See ServiceManager."""
        self._stop(COMMAND_SECONDS)
        self.file.unlink(missing_ok=True)

    def status(self) -> Status:
        """See ServiceManager."""
        printed = _run("launchctl", "print", self._service)
        found = re.search(r"^\s*pid = (\d+)$", printed.stdout, re.MULTILINE) if printed.returncode == 0 else None
        return Status(self.file.exists(), int(found[1]) if found else 0)

    def _stop(self, seconds: float) -> None:
        """Until launchd has forgotten it: it answers at once, and goes on while the server drains."""
        if _run("launchctl", "print", self._service).returncode != 0:
            return
        _run("launchctl", "bootout", self._service)
        deadline = time.monotonic() + seconds
        while _run("launchctl", "print", self._service).returncode == 0:
            if time.monotonic() > deadline:
                raise ServiceError(f"launchd still runs {self._service} after {seconds:g} s")
            time.sleep(POLL_SECONDS)


class Systemd:
    """systemd, the instance of this user."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        self.file = Path(base) / "systemd/user" / UNIT

    def text(self, settings: ServiceSettings) -> str:
        """See ServiceManager."""
        return user_unit(settings)

    def install(self, settings: ServiceSettings) -> None:
        """See ServiceManager."""
        _write(self.file, user_unit(settings))
        self._control("daemon-reload")
        self._control("enable", UNIT)
        self._control("restart", UNIT)

    def uninstall(self) -> None:
        """See ServiceManager."""
        if self.file.exists():
            self._control("disable", "--now", UNIT)
            self.file.unlink(missing_ok=True)
            self._control("daemon-reload")

    def status(self) -> Status:
        """See ServiceManager."""
        shown = self._control("show", "--property", "MainPID", "--value", UNIT).strip()
        return Status(self.file.exists(), int(shown) if shown.isdecimal() else 0)

    def _control(self, *words: str) -> str:
        return _checked("systemctl", "--user", *words)


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise ServiceError(f"{file} can't be written: {error.strerror or error}") from None


def _checked(*command: str) -> str:
    """What a command says; ServiceError where it fails."""
    done = _run(*command)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise ServiceError(f"`{' '.join(command)}` failed with {done.returncode}: {said or 'it says nothing'}")
    return done.stdout


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Where all commands go out."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ServiceError(f"there is no program {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise ServiceError(f"`{' '.join(command)}` did not end within {COMMAND_SECONDS:g} s") from None
