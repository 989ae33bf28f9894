"""A flood of warnings of one kind is told in part, with the number of those left out."""

import logging
import time
from dataclasses import dataclass

from inferd_server.core.model import Clock

WINDOW_SECONDS = 10.0
MOST_PER_WINDOW = 20
MAX_KINDS = 512
"""Kinds that are counted at a time; more (a library that writes values into its messages) start anew."""


@dataclass(slots=True)
class _Kind:
    began: float
    count: int = 0


class FloodGate(logging.Filter):
    """Lets so many records of a kind through per window; kinds are a logger's messages before their values.

    Below WARNING everything passes: the lines of calls are as many as the calls.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told; the first of a window says how many of the last one were not."""
        if record.levelno < logging.WARNING:
            return True
        key, now = (record.name, record.levelno, str(record.msg)[:200]), self._clock()
        kind = self._kinds.get(key)
        if kind is None or now - kind.began >= WINDOW_SECONDS:
            if kind is not None and kind.count > MOST_PER_WINDOW:
                record.left_out = kind.count - MOST_PER_WINDOW
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(now)
        kind.count += 1
        return kind.count <= MOST_PER_WINDOW
