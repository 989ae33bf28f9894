"""Looks at the event loop from outside: a stuck loop can answer no probe and tell nothing of itself.

Whoever probes sees that by its own timeout; this says, while it lasts, where the loop is stuck.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Self

from inferd_server.core.model import Clock

log = logging.getLogger("inferd.telemetry")

STUCK_SECONDS = 5.0
"""No sign of life for so long is worth a line."""
MAX_FRAMES = 12


class LoopWatch:
    """Watches the running loop while its block runs, from a thread that asks it for signs of life."""

    def __init__(self, *, stuck_seconds: float = STUCK_SECONDS, clock: Clock = time.monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stuck_seconds = stuck_seconds
        self._clock = clock
        self._asked_at = clock()
        self._is_answered = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="inferd-loop-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It ends by itself: nobody waits for it."""
        self._is_over.set()
        self._is_answered.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._stuck_seconds / 5):
            self._asked_at = self._clock()
            self._is_answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._is_answered.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._is_answered.wait(self._stuck_seconds) and not self._is_over.is_set():
                self._tell()

    def _tell(self) -> None:
        log.warning("the event loop is stuck: nobody is answered", extra={"stack": self._stack()})
        self._is_answered.wait()
        if not self._is_over.is_set():
            seconds = self._clock() - self._asked_at
            log.warning("the event loop runs again", extra={"stuck_seconds": round(seconds, 3)})

    def _stack(self) -> str:
        """Where it is: files and lines, no values."""
        frame = sys._current_frames().get(self._loop_thread)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-MAX_FRAMES:]).rstrip()
