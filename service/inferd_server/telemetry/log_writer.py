"""Writes log lines on a thread of its own: nobody who logs waits for whoever reads them.

A pipe whose reader has stopped, a full disk, a closed stream: lines are lost, counted, and the count is told once lines
can be written again. What waits is bounded.
"""

import logging
import os
import select
import threading
from collections import deque

MAX_WAITING_NBYTES = 4 * 2**20
FLUSH_SECONDS = 1.0
"""Longest wait at the end of the process for what still waits."""


class LogWriter(logging.Handler):
    """A handler for one file descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_nbytes = 0  # what is being written included
        self._untold = 0  # of `lost`
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Format here, so that no record keeps what it speaks of alive; write elsewhere. Never blocks, never raises."""
        try:
            line = self.format(record).encode(errors="backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - what can't be told must not end what it tells of
            line = b""
        with self._changed:
            if not line or self._is_closed or self._waiting_nbytes + len(line) > MAX_WAITING_NBYTES:
                self._lose(1)
                return
            self._waiting.append(line)
            self._waiting_nbytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inferd-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything was written, at most FLUSH_SECONDS."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_nbytes, FLUSH_SECONDS)

    def close(self) -> None:
        """Take no more; what waits may still be written."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        super().close()

    def _lose(self, lines: int) -> None:
        self.lost += lines
        self._untold += lines

    # --- on the thread

    def _run(self) -> None:
        while lines := self._take():
            try:
                _write(self._descriptor, b"".join(lines))
                lost = 0
            except OSError:
                lost = len(lines)
            with self._changed:
                self._waiting_nbytes -= sum(map(len, lines))
                self._lose(lost)
                untold = 0 if lost else self._untold
                self._untold -= untold
                self._changed.notify_all()
            if untold:
                self.emit(_told(untold))

    def _take(self) -> list[bytes]:
        """All that waits; none when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            lines = list(self._waiting)
            self._waiting.clear()
            return lines


def _told(lost: int) -> logging.LogRecord:
    message = "%d log lines were lost: they could not be written in time"
    return logging.LogRecord("inferd.telemetry", logging.WARNING, __file__, 0, message, (lost,), None)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever started us has set it so
            select.select([], [descriptor], [])
