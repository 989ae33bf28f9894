"""What one model's running requests were promised of the process's memory, up to the last token of each. Pure."""

from collections.abc import Collection

from inferd_server.core.errors import InferdError, out_of_memory
from inferd_server.core.work import Extent, Work
from inferd_server.engine.memory import WorkFootprint

from .memory import Share, WorkMemory


class Booking:
    """The promises of one loaded model. `has_freed`: requests have ended since the last `give_back`.

    Args:
        name: the model's, for errors.
        footprint: what its work takes.
        share: its share of `memory`.
    """

    def __init__(self, name: str, footprint: WorkFootprint, memory: WorkMemory, share: Share) -> None:
        self._name = name
        self._footprint = footprint
        self._memory = memory
        self._share = share
        self._extent = Extent()  # of the running requests
        self._checked_limit = memory.limit_nbytes  # that everyone who waits fits into, alone
        self.has_freed = False

    def misfit(self, request: Work) -> InferdError | None:
        """The error of what does not fit even alone."""
        required = self._peak_nbytes(1, Extent().with_one_more(request))
        if required <= self._memory.limit_nbytes:
            return None
        return out_of_memory(self._name, required, self._memory.limit_nbytes)

    def has_new_limit(self) -> bool:
        """Whether the limit is another than at the last call, so that whoever waits may be a misfit now."""
        is_new = self._memory.limit_nbytes != self._checked_limit
        self._checked_limit = self._memory.limit_nbytes
        return is_new

    def take(self, running: int, request: Work) -> bool:
        """Have the memory promised that one more takes beside so many; False (and nothing changes) without room.

        Who comes first waits for it, and everyone behind: a long one is not passed by for ever.
        """
        extent = self._extent.with_one_more(request)
        if not self._share.take(self._peak_nbytes(running + 1, extent)):
            return False
        self._extent = extent
        return True

    def give_back(self, running: Collection[Work]) -> None:
        """Return what the requests that ended since the last time had been promised; these still run."""
        self.has_freed = False
        self._extent = Extent()
        for request in running:
            self._extent = self._extent.with_one_more(request)
        self._share.shrink(self._peak_nbytes(len(running), self._extent))

    def ask_no_more(self) -> None:
        """Nobody waits for what `take` refused."""
        self._share.ask_no_more()

    def leave(self) -> None:
        """The model is gone, and everything that took memory with it."""
        self._share.leave()

    def _peak_nbytes(self, rows: int, extent: Extent) -> int:
        return self._footprint.peak_nbytes(rows, extent.total_tokens, extent.context_tokens, extent.media_nbytes)
