"""Moments at which the machine has to look again: one heap, so that the shell needs one timer."""

import heapq
import math
from collections.abc import Callable, Hashable


class Alarms:
    """(moment, subject) pairs. A subject is what the moment is about; one that is no longer live is dropped unheard."""

    def __init__(self, is_live: Callable[[Hashable], bool]) -> None:
        self._is_live = is_live
        self._heap: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def set(self, at: float, subject: Hashable) -> None:
        """Ring for `subject` at `at`; never, if that is infinite."""
        if at < math.inf:
            self._count += 1
            heapq.heappush(self._heap, (at, self._count, subject))

    def next_at(self) -> float:
        """When the next live alarm rings; infinite for never."""
        while self._heap and not self._is_live(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> Hashable | None:
        """Take the next live subject whose moment has come."""
        if self.next_at() <= now:
            return heapq.heappop(self._heap)[2]
        return None
