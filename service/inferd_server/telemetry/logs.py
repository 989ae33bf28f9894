"""Structured logs on stderr: structlog renders what the rooms say through stdlib logging. Prompts are never logged.

One record is one line (tracebacks apart, in the console format, whose lines are indented), of bounded length, and no
value can make it look like two.
"""

import logging
import os
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

import structlog

from .flood import FloodGate
from .log_writer import LogWriter

LogFormat = Literal["console", "json"]

STDERR = 2
MAX_VALUE_CHARACTERS = 2000
"""A longer value of one log field is cut, so that no input makes an endless line."""
MAX_TRACEBACK_CHARACTERS = 16_000
"""Of a longer traceback the middle is left out."""

MAX_CAUSES = 8
"""Of an exception whose texts are left out, so many links of its chain are told."""

MULTILINE = ("exception", "stack")
"""Fields that are shown below the line in the console format."""

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
]


def configure(log_format: LogFormat = "console", level: str = "INFO") -> None:
    """Send every record of the process to stderr, and Python's warnings too. Logging never blocks or raises."""
    renderers: list[structlog.typing.Processor]
    if log_format == "json":
        renderers = [structlog.processors.JSONRenderer()]
    else:
        # The exception is text by now. (rich, where it is installed, would print every frame's local variables.)
        plain = structlog.dev.plain_traceback
        renderers = [
            _drop_empty_values,
            _escape_controls,
            structlog.dev.ConsoleRenderer(colors=_is_terminal(), pad_event_to=0, exception_formatter=plain),
        ]
    handler = LogWriter(STDERR)
    handler.addFilter(FloodGate())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _show_exception,
                _cut_long_values,
                *renderers,
            ],
        )
    )
    root = logging.getLogger()
    _close_writers()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("inferd").setLevel(level.upper())
    logging.captureWarnings(True)


def lost_lines() -> int:
    """Lines that could not be written since the start."""
    return sum(writer.lost for writer in _writers())


def flush() -> None:
    """Wait, for a bounded time, until what was logged is written."""
    for writer in _writers():
        writer.flush()


def _writers() -> list[LogWriter]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]


def _close_writers() -> None:
    for writer in _writers():
        writer.close()


def _is_terminal() -> bool:
    try:
        return os.isatty(STDERR)
    except OSError:
        return False


def _show_exception(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """An exception's text may quote what it broke on, and at the rpc edge and in libraries that may be a prompt: there
    it is left out. Other rooms of ours see models' files, token ids and arrays alone."""
    name = str(event["logger"])
    if name == "asyncio":  # "… exception was never retrieved", and then the exception itself
        event["event"] = str(event["event"]).partition("\n")[0].partition(" in callback ")[0]
    sees_texts = name.startswith("inferd.rpc") or not name.startswith("inferd")
    return (_show_places if sees_texts else structlog.processors.format_exc_info)(logger, method, event)


ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def _places(exc_info: ExceptionInfo) -> str:
    """An exception's type and where it was raised, and below it the same of its causes."""
    return "\nbecause of:\n".join(_links(exc_info[1]))


def _links(error: BaseException | None) -> Iterator[str]:
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        kind = type(error)
        yield "".join(traceback.format_tb(error.__traceback__)) + f"{kind.__module__}.{kind.__qualname__}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


_show_places = structlog.processors.ExceptionRenderer(exception_formatter=_places)


def _cut_long_values(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in event.items():
        if key in MULTILINE:
            event[key] = _without_middle(str(value))
        elif not isinstance(value, int | float | None):
            text = value if isinstance(value, str) else repr(value)
            event[key] = text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "…"
    return event


def _without_middle(text: str) -> str:
    half = MAX_TRACEBACK_CHARACTERS // 2
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else f"{text[:half]}\n…\n{text[-half:]}"


def _drop_empty_values(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """For people; machines get every field of a record, whatever it holds."""
    return {key: value for key, value in event.items() if value not in (None, "")}


def _escape_controls(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in event.items():
        if key in MULTILINE:
            event[key] = "\n".join(f"    {_printable(line)}" for line in str(value).split("\n"))
        elif isinstance(value, str):
            event[key] = _printable(value)
    return event


def _printable(text: str) -> str:
    """Without line ends, terminal sequences and what turns the direction of text."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
