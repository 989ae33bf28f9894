"""The wait queue of one model: who gets the next free row. Pure: no clock, no loop."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

AGING_SECONDS = 10.0
"""A waiting item gains one level of priority in this time."""

ItemT = TypeVar("ItemT", bound=Hashable)


class WaitQueue(Generic[ItemT]):
    """Items by aged priority (higher first), then by arrival.

    Everyone ages at the same rate, so who is ahead of whom never changes with time: the key
    `arrived / AGING_SECONDS - priority` is fixed, and a heap answers in O(log n), amortised over removals.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ItemT]] = []
        self._places: dict[ItemT, int] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._places)

    def push(self, item: ItemT, priority: int, arrived: float) -> None:
        """Add an item that is not in the queue; `arrived` is in seconds of the one clock and never goes back."""
        self._arrivals += 1
        self._places[item] = self._arrivals
        heapq.heappush(self._heap, (arrived / AGING_SECONDS - priority, self._arrivals, item))

    def first(self) -> ItemT:
        """The first item, which stays.

        Raises:
            IndexError: nobody waits.
        """
        while True:
            _, place, item = self._heap[0]
            if self._places.get(item) == place:
                return item
            heapq.heappop(self._heap)

    def pop(self) -> ItemT:
        """Remove and return the first item.

        Raises:
            IndexError: nobody waits.
        """
        item = self.first()
        heapq.heappop(self._heap)
        del self._places[item]
        return item

    def remove(self, item: ItemT) -> bool:
        """Take an item out, wherever it stands; False if it is not here."""
        if self._places.pop(item, None) is None:
            return False
        if len(self._heap) > 2 * len(self._places) + 16:
            self._sweep()
        return True

    def drain(self) -> list[ItemT]:
        """Remove and return all items, first to last."""
        items = [item for _, place, item in sorted(self._heap) if self._places.get(item) == place]
        self._heap.clear()
        self._places.clear()
        return items

    def _sweep(self) -> None:
        # Removal leaves its heap entry behind; swept once they outnumber the items, so memory follows the queue.
        self._heap = [entry for entry in self._heap if self._places.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
