"""A lease: the right to use one resident instance of a model, given back exactly once."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from inferd_server.core.model import ContentionPolicy, ModelEntry, Resident


def no_work() -> int:
    """A request that has done nothing yet."""
    return 0


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a request asks the registry for.

    Attributes:
        model: canonical name.
        policy: what to do when there is no room.
        priority: within ±100; higher runs first and is preempted last.
        preemptible: whether another model's request may interrupt it.
        load_if_needed: whether a load may be started or awaited for it.
        interrupted: it was interrupted and wants to resume: it waits whatever its own strategy, and never preempts.
        work_done: how much a preemption would lose, in tokens; asked when victims are weighed.
        preemptions: of the lease it held before (`Lease.preemptions`), so that no rival preempts it for ever.
    """

    model: str
    policy: ContentionPolicy
    priority: int = 0
    preemptible: bool = True
    load_if_needed: bool = True
    interrupted: bool = False
    work_done: Callable[[], int] = no_work
    preemptions: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """The machine's side of a lease. `preemptions`: by which model it was interrupted, and when."""

    id: int
    request: LeaseRequest
    preemptions: tuple[tuple[str, float], ...] = ()


class Lease:
    """A granted lease. Leave its block, or call `release`, when the stream has ended; either once or more.

    Attributes:
        waited_seconds: from the request to the grant.
        loading_seconds: the part of it in which the model was being loaded.
    """

    def __init__(
        self,
        entry: ModelEntry,
        generation: int,
        resident: Resident,
        record: LeaseRecord,
        give_back: Callable[[int], None],
        *,
        waited_seconds: float,
        loading_seconds: float,
    ) -> None:
        self.entry = entry
        self.generation = generation
        self.resident = resident
        self.waited_seconds = waited_seconds
        self.loading_seconds = loading_seconds
        self._record = record
        self._give_back: Callable[[int], None] | None = give_back

    @property
    def preemptions(self) -> tuple[tuple[str, float], ...]:
        """Which models interrupted this request, and when; for the request that resumes it."""
        return self._record.preemptions

    def release(self) -> None:
        """Give the lease back; a second call does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self._record.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
