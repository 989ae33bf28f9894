"""The files that make a service manager run inferd: a launch agent for macOS, a user unit for systemd. Pure."""

import math
import plistlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LABEL = "local.inferd.server"
"""Its name to launchd."""
UNIT = "inferd.service"
"""Its name to systemd."""
END_SECONDS = 45
"""What the server may take after its drain: its engines' end (app.shutdown.JOIN_SECONDS), and the rest."""
OPEN_FILES = 65_536
RESTART_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What to run.

    Attributes:
        command: the program and its arguments; absolute paths.
        stop_seconds: from SIGTERM to SIGKILL.
        log: where launchd writes what the server says (systemd has its journal).
    """

    command: Sequence[str]
    stop_seconds: int
    log: Path


def stop_seconds(drain_delay_seconds: float, drain_timeout_seconds: float) -> int:
    """How long a manager has to wait before it kills a server with these times."""
    return math.ceil(drain_delay_seconds + drain_timeout_seconds) + END_SECONDS


def launch_agent(settings: ServiceSettings) -> str:
    """The property list for ~/Library/LaunchAgents."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(settings.command),
            "RunAtLoad": True,
            # Exit code 0 means that somebody stopped it.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_SECONDS,
            "ExitTimeOut": settings.stop_seconds,
            # The default slows a process down as background work.
            "ProcessType": "Interactive",
            "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "StandardOutPath": str(settings.log),
            "StandardErrorPath": str(settings.log),
        },
        sort_keys=False,
    ).decode()


def user_unit(settings: ServiceSettings) -> str:
    """The unit for ~/.config/systemd/user."""
    return f"""\
[Unit]
Description=inferd: models over gRPC

[Service]
Type=exec
ExecStart={" ".join(map(_quoted, settings.command))}
ExecReload=/bin/kill -HUP $MAINPID
KillMode=mixed
TimeoutStopSec={settings.stop_seconds}
Restart=on-failure
RestartSec={RESTART_SECONDS}
LimitNOFILE={OPEN_FILES}
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """One word of a command line of systemd, which would expand % and $ and split at spaces."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or not word or set(word) & set(" \t'") else word
