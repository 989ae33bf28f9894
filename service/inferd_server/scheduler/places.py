"""Waiting streams that asked are told how many are ahead of them: at once, and then when that changes."""

import asyncio

from .queue import WaitQueue
from .stream import AnyStream

NEWS_SECONDS = 0.05
"""Changes that follow each other closer than this are told as one."""


class Places:
    """The streams of one queue that are told. Costs nothing while there are none."""

    def __init__(self, queue: WaitQueue[AnyStream]) -> None:
        self._queue = queue
        self._told: list[AnyStream] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: AnyStream) -> None:
        """Tell a waiting stream its place, now and until it leaves the queue."""
        self._told.append(stream)
        stream.place(self._queue.position(stream))

    def note_change(self) -> None:
        """The queue changed: whoever is told will be, soon."""
        if self._told and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NEWS_SECONDS, self._tell)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._told.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        self._told = [stream for stream in self._told if stream in self._queue]
        for stream in self._told:
            stream.place(self._queue.position(stream))
