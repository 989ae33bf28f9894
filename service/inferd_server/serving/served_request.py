"""What requests of every kind do alike while in flight: they ask for a lease, are admitted, handed back, ended."""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd_server.core.embedding import EmbedRequest
from inferd_server.core.errors import InferdError, Reason, preempted, request_timeout
from inferd_server.core.generation import GenerationRequest
from inferd_server.core.model import Clock, ContentionPolicy, Interrupted, ModelEntry
from inferd_server.core.observer import GenerationObserver
from inferd_server.core.reranking import RerankRequest
from inferd_server.registry.lease import Lease
from inferd_server.registry.registry import LeaseRequest, Registry
from inferd_server.scheduler.stream import Stream

from .acquiring import Acquiring
from .callers import Caller
from .in_flight import InFlight, Stage
from .stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """The server's side of every request; times in seconds."""

    policy: ContentionPolicy
    coalesce_seconds: float = 0.010
    request_timeout_seconds: float = 600.0
    resume_preempted: bool = True
    resume_margin_seconds: float = 1.0

    def may_resume(self, deadline: float | None, now: float) -> bool:
        """Whether a request that was interrupted now goes on later; `deadline` is its caller's own."""
        return self.resume_preempted and (deadline is None or deadline - now > self.resume_margin_seconds)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a request meets: the registry, its caller, the table it is in, and who looks on.

    Attributes:
        deadline: its caller's own, on `clock`; None: none.
    """

    caller: Caller
    registry: Registry
    options: ServedOptions
    in_flight: InFlight
    clock: Clock
    deadline: float | None
    observer: GenerationObserver


class ServedRequest(ABC):
    """A request from its preparation to its end, but for what it asks of the model and what comes of it."""

    def __init__(
        self, request: GenerationRequest | EmbedRequest | RerankRequest, entry: ModelEntry, around: Surroundings
    ) -> None:
        self.entry = entry
        self.stage = Stage.PREPARING
        self._asked = request
        self._around = around
        self._caller = around.caller
        self._observer = around.observer
        self._stopwatch = Stopwatch(around.clock)
        self._preemptions = 0
        self._was_handed_back = False  # by a preemption, running or not yet admitted: it asks as one interrupted
        self._preemptions_by: tuple[tuple[str, float], ...] = ()
        self._error: InferdError | None = None
        self._acquiring: Acquiring | None = None
        self._lease: Lease | None = None
        self._stream: Stream[Any] | None = None
        self._timeout: asyncio.TimerHandle | None = None

    @abstractmethod
    def _work_done(self) -> int:
        """Tokens of work that would be lost with its instance."""

    @abstractmethod
    async def _prepare_for(self, entry: ModelEntry) -> None:
        """Begin for another model, or for other files of it."""

    @property
    def held_nbytes(self) -> int:
        """Bytes of media that it keeps until its end."""
        return 0

    @property
    def _has_started(self) -> bool:
        return self.stage in {Stage.RUNNING, Stage.INTERRUPTED}

    def end(self, error: InferdError) -> None:
        """End the request from outside with `error`, wherever it stands; its row and its lease are free at once,
        even if its consumer is stuck in a write. The first reason given counts. Synchronous."""
        if self._error is not None:
            return
        self._error = error
        if self._acquiring is not None:
            self._acquiring.close()
        if self._stream is not None:
            self._stream.end(error)
        if self._lease is not None:
            self._lease.release()

    def check_ended(self) -> None:
        """Raise what `end` was given, if it was called."""
        if self._error is not None:
            raise self._error

    def _ending(self) -> InferdError | None:
        """The error of `end`, if the cancellation just caught was its and not this task's own."""
        return None if _is_cancelled() else self._error

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()

    # --- its lease

    def _lease_request(self) -> LeaseRequest:
        scheduling = self._asked.scheduling
        return LeaseRequest(
            model=self.entry.name,
            policy=scheduling.contention or self._around.options.policy,
            priority=scheduling.priority,
            preemptible=scheduling.preemptible,
            load_if_needed=scheduling.load_if_needed,
            interrupted=self._was_handed_back,
            work_done=self._work_done,
            preemptions=self._preemptions_by,
        )

    def _start_waiting(self, *, tell_waiting: bool) -> Acquiring:
        """Ask for a lease that is not to be had now; `_stop_waiting` follows, whatever comes."""
        self.check_ended()
        self._note_waiting()
        self._acquiring = Acquiring(self._around.registry, self._lease_request(), tell_waiting=tell_waiting)
        return self._acquiring

    def _stop_waiting(self) -> None:
        if self._acquiring is not None:
            self._acquiring.close()
            self._acquiring = None

    def _note_lease(self, lease: Lease) -> Lease:
        """A wait ended with this."""
        self._stopwatch.loaded(lease.loading_seconds)
        self._observer.loaded(lease.loading_seconds)
        return lease

    async def _follow_name(self, error: InferdError, *, may_begin_anew: bool = True) -> None:
        """A new configuration may have removed the model while the request waited, and pointed the name that was asked
        for to another one: then it goes on with that. Raises `error` in every other case."""
        if error.reason is not Reason.MODEL_NOT_FOUND or not may_begin_anew:
            raise error
        entry = self._around.registry.resolve(self._asked.model)
        if entry.name == self.entry.name:
            raise error
        await self._prepare_for(entry)

    # --- what becomes of it

    def _note_waiting(self) -> None:
        """It has to wait, for its model or for a row: if that is new, the bounds on how many may do so apply."""
        if self.stage is Stage.PREPARING:
            self._around.in_flight.check_queue(self)
            self.stage = Stage.WAITING

    def _note_admission(self) -> bool:
        """Note the admission; whether it was the first."""
        first = self.stage is not Stage.INTERRUPTED
        self.stage = Stage.RUNNING
        self._stopwatch.admitted()
        if first:
            timing = self._stopwatch.timing()
            self._observer.admitted(timing.queue, timing.load)
        else:
            self._observer.resumed()
        limit = self._around.options.request_timeout_seconds
        if self._timeout is None and limit:
            self._timeout = asyncio.get_running_loop().call_later(limit, self.end, request_timeout(limit))
        return first

    def _note_interruption(self, signal: Interrupted) -> None:
        around = self._around
        if not around.options.may_resume(around.deadline, around.clock()):
            raise preempted(self.entry.name, signal.by_model)
        self._was_handed_back = True
        if self.stage is Stage.RUNNING:
            self._preemptions += 1
            self._observer.interrupted()
            self.stage = Stage.INTERRUPTED
        self._stopwatch.interrupted()


def _is_cancelled() -> bool:
    """Whether this task is being cancelled; else a CancelledError came from what it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def same_files(one: ModelEntry, other: ModelEntry) -> bool:
    """Whether two instances were loaded from the same files."""
    return _files(one) == _files(other)


def _files(entry: ModelEntry) -> tuple[Path, Path | None, str]:
    return entry.engine.path, entry.engine.adapter_path, entry.revision
