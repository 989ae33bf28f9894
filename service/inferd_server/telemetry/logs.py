"""Structured logs on stderr: structlog renders what the rooms say through stdlib logging. Prompts are never logged."""

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["console", "json"]

MAX_VALUE_CHARACTERS = 2000
"""A longer value of one log field is cut, so that no input makes an endless line."""

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
]


def configure(log_format: LogFormat = "console", level: str = "INFO") -> None:
    """Send every record of the process to stderr, one line each (tracebacks apart, in the console format)."""
    renderers: list[structlog.typing.Processor]
    if log_format == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The default, where rich is installed, prints every frame's local variables: prompts among them.
        plain = structlog.dev.plain_traceback
        renderers = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=plain)
        ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _cut_long_values, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("inferd").setLevel(level.upper())


def _cut_long_values(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > MAX_VALUE_CHARACTERS:
            event[key] = value[:MAX_VALUE_CHARACTERS] + "…"
    return event
