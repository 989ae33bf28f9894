"""The wait queue of one model: who gets the next free row. Pure: no clock, no loop."""

import heapq
from collections.abc import Hashable, Iterator
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
        self._positions: dict[ItemT, int] | None = None  # counted when asked for, until the next change

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: ItemT) -> bool:
        return item in self._places

    def __iter__(self) -> Iterator[ItemT]:
        """First to last, as of now: the queue may change meanwhile."""
        return iter(self._in_order())

    def push(self, item: ItemT, priority: int, arrived: float) -> None:
        """Add an item that is not in the queue; `arrived` is in seconds of the one clock and never goes back."""
        self._arrivals += 1
        self._places[item] = self._arrivals
        self._positions = None
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
        self._positions = None
        return item

    def remove(self, item: ItemT) -> bool:
        """Take an item out, wherever it stands; False if it is not here."""
        if self._places.pop(item, None) is None:
            return False
        self._positions = None
        if len(self._heap) > 2 * len(self._places) + 16:
            self._sweep()
        return True

    def drain(self) -> list[ItemT]:
        """Remove and return all items, first to last."""
        items = self._in_order()
        self._heap.clear()
        self._places.clear()
        self._positions = None
        return items

    def position(self, item: ItemT) -> int:
        """How many are ahead of an item in the queue. Everyone is counted once after each change, if asked for.

        Raises:
            KeyError: it is not here.
        """
        if self._positions is None:
            self._positions = {each: position for position, each in enumerate(self._in_order())}
        return self._positions[item]

    def _in_order(self) -> list[ItemT]:
        return [item for _, place, item in sorted(self._heap) if self._places.get(item) == place]

    def _sweep(self) -> None:
        # Removal leaves its heap entry behind; swept once they outnumber the items, so memory follows the queue.
        self._heap = [entry for entry in self._heap if self._places.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
