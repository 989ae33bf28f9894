"""The process's memory for work beside the weights, shared by its loaded models. Pure; lives on the event loop.

What a model's running sequences may take at most is promised to it before they start; the promises together stay
within the limit. A model that does not get what it asks for stands in line, and nobody behind it gets more: so a large
request is not starved by small ones of another model. Prefix caches get what the promises leave and give way when more
is promised: the promised model's own before it starts (both go through its one queue), another's at its next step.
"""

from collections.abc import Callable

UNLIMITED = 1 << 62


class WorkMemory:
    """The limit and who holds what of it."""

    def __init__(self, limit_nbytes: int = UNLIMITED) -> None:
        self.limit_nbytes = limit_nbytes
        self._shares: list[Share] = []
        self._line: list[Share] = []

    @property
    def promised_nbytes(self) -> int:
        """Bytes of all promises."""
        return sum(share.work_nbytes for share in self._shares)

    def limit(self, nbytes: int) -> None:
        """Change the limit. What is promised stays; with less room than that nothing new is."""
        self.limit_nbytes = nbytes
        if self._shares:
            self.bound_caches(self._shares[-1])
        self.tell_room()

    def join(
        self, most_cache_nbytes: int, on_cache_bound: Callable[[int], None], on_room: Callable[[], None]
    ) -> "Share":
        """A loaded model's share.

        Args:
            most_cache_nbytes: its prefix cache's own bound.
            on_cache_bound: called with what its prefix cache may hold, whenever that is not what it was (at first its
                own bound).
            on_room: called when it may be worth asking again; has to return before it does.
        """
        share = Share(self, most_cache_nbytes, on_cache_bound, on_room)
        self._shares.append(share)
        self.bound_caches(share)
        return share

    def leave(self, share: "Share") -> None:
        """A model is gone."""
        self._shares.remove(share)
        self.leave_line(share)
        self.tell_room(share)

    def grant(self, share: "Share", work_nbytes: int) -> bool:
        """Promise so much to a share, in place of what it has, if it fits and is the share's turn."""
        is_turn = not self._line or self._line[0] is share
        if not is_turn or self.promised_nbytes - share.work_nbytes + work_nbytes > self.limit_nbytes:
            if share not in self._line:
                self._line.append(share)
            return False
        share.work_nbytes = work_nbytes
        self.leave_line(share)
        self.bound_caches(share)
        return True

    def leave_line(self, share: "Share") -> None:
        """A share got what it asked for, or asks no more."""
        if share in self._line:
            was_first = self._line[0] is share
            self._line.remove(share)
            if was_first and self._line:
                self._line[0].on_room()

    def bound_caches(self, first: "Share") -> None:
        """Divide what is not promised among the prefix caches, in order of joining; that of `first` comes last."""
        room = self.limit_nbytes - self.promised_nbytes
        for share in [*(each for each in self._shares if each is not first), first]:
            bound = max(0, min(room, share.most_cache_nbytes))
            room -= bound
            if bound != share.cache_bound_nbytes:
                share.cache_bound_nbytes = bound
                share.on_cache_bound(bound)

    def tell_room(self, smaller: "Share | None" = None) -> None:
        """There is more room, because one share got smaller: the others may have waited for that."""
        for share in list(self._shares):
            if share is not smaller:
                share.on_room()


class Share:
    """What one loaded model holds. Made by `WorkMemory.join`."""

    def __init__(
        self,
        memory: WorkMemory,
        most_cache_nbytes: int,
        on_cache_bound: Callable[[int], None],
        on_room: Callable[[], None],
    ) -> None:
        self._memory = memory
        self.most_cache_nbytes = most_cache_nbytes
        self.on_cache_bound = on_cache_bound
        self.on_room = on_room
        self.work_nbytes = 0
        self.cache_bound_nbytes = most_cache_nbytes

    def take(self, work_nbytes: int) -> bool:
        """Have so much promised in place of what is promised now; False if that has to wait."""
        return self._memory.grant(self, work_nbytes)

    def ask_no_more(self) -> None:
        """Nobody waits here for what `take` refused."""
        self._memory.leave_line(self)

    def shrink(self, work_nbytes: int) -> None:
        """Give back what is promised beyond this."""
        if work_nbytes < self.work_nbytes:
            self.work_nbytes = work_nbytes
            self._memory.bound_caches(self)
            self._memory.tell_room(self)

    def leave(self) -> None:
        """The model is gone."""
        self._memory.leave(self)
