"""Those who want to be told what they wait for: at once, and then when it changes, at most every so often."""

import asyncio
from collections.abc import Callable

from inferd_server.core.generation import Waiting
from inferd_server.core.model import Clock

NEWS_SECONDS = 0.05
"""Changes that follow each other closer than this are told as one."""


class Waiters:
    """Callbacks by ticket; `find` answers what a ticket waits for now, None if nothing."""

    def __init__(self, find: Callable[[int], Waiting | None], clock: Clock) -> None:
        self._find = find
        self._clock = clock
        self._callbacks: dict[int, Callable[[Waiting], None]] = {}
        self._told: dict[int, Waiting] = {}
        self._looked_at = -NEWS_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def add(self, number: int, callback: Callable[[Waiting], None]) -> None:
        """Tell this one from now on."""
        self._callbacks[number] = callback

    def remove(self, number: int) -> None:
        """Tell it nothing more."""
        self._callbacks.pop(number, None)
        self._told.pop(number, None)

    def close(self) -> None:
        """Stop."""
        self._callbacks.clear()
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Something may have changed: newcomers are told at once, the others soon."""
        if not self._callbacks:
            return
        for number in self._callbacks.keys() - self._told.keys():
            self._tell(number)
        due_in = self._looked_at + NEWS_SECONDS - self._clock()
        if due_in <= 0:
            self._look_at_all()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(due_in, self._look_at_all)

    def _look_at_all(self) -> None:
        self._looked_at = self._clock()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for number in list(self._callbacks):
            self._tell(number)

    def _tell(self, number: int) -> None:
        waiting = self._find(number)
        callback = self._callbacks.get(number)
        if waiting is None or callback is None or self._told.get(number) == waiting:
            return
        self._told[number] = waiting
        callback(waiting)
