"""One request of Embed or Rerank in flight: texts into sequences, lease, vectors, interruption and resume, end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from inferd_server.core.embedding import EmbedRequest, Encoded, EncodeRequest
from inferd_server.core.errors import InferdError, Reason, preempted, request_timeout
from inferd_server.core.generation import ServedModel, Usage
from inferd_server.core.model import Clock, Interrupted, ModelEntry
from inferd_server.core.observer import UNOBSERVED, GenerationObserver
from inferd_server.core.reranking import RerankRequest
from inferd_server.registry.lease import Lease
from inferd_server.registry.registry import LeaseRequest, Registry
from inferd_server.scheduler.scheduler import Scheduler
from inferd_server.scheduler.stream import Stream
from inferd_server.text.sequences import TokenSequence

from .acquiring import Acquiring
from .callers import Caller
from .generation import GenerationOptions, is_cancelled, same_files
from .in_flight import Flight, Stage
from .stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request's texts as one model reads them; the rest is EncodeRequest's."""

    sequences: Sequence[TokenSequence]
    normalize: bool = False
    dimensions: int = 0
    second_from: int = 0

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(each.ids) for each in self.sequences)

    @property
    def truncated(self) -> tuple[int, ...]:
        """Indices of the texts that were cut."""
        return tuple(i for i, each in enumerate(self.sequences) if each.is_cut)


Prepare = Callable[[ModelEntry], Awaitable[Prepared]]


@dataclass(frozen=True, slots=True)
class Vectors:
    """What came of a request: a vector for each text, in order, as little-endian float32.

    Attributes:
        entry: of the model whose files they were made with.
    """

    request_id: str
    entry: ModelEntry
    model: ServedModel
    vectors: tuple[bytes, ...]
    truncated: tuple[int, ...]
    usage: Usage
    preemptions: int


class EncodingRun:
    """One request from its texts to their vectors. `run` runs once."""

    def __init__(
        self,
        request: EmbedRequest | RerankRequest,
        entry: ModelEntry,
        caller: Caller,
        registry: Registry,
        options: GenerationOptions,
        clock: Clock,
        deadline: float | None,
        prepare: Prepare,
        check_queue: Callable[[Flight], None],
        observer: GenerationObserver = UNOBSERVED,
    ) -> None:
        """`prepare` makes the texts ready for a model; `check_queue` raises QUEUE_FULL where no more may wait."""
        self.request = request
        self.entry = entry
        self.stage = Stage.PREPARING
        self._caller = caller
        self._registry = registry
        self._options = options
        self._clock = clock
        self._deadline = deadline
        self._prepare = prepare
        self._check_queue = check_queue
        self._observer = observer
        self._stopwatch = Stopwatch(clock)
        self._prepared = Prepared(())
        self._vectors: dict[int, bytes] = {}
        self._generation = 0  # of the instance that made the vectors
        self._preemptions = 0
        self._preemptions_by: tuple[tuple[str, float], ...] = ()
        self._was_handed_back = False
        self._error: InferdError | None = None
        self._acquiring: Acquiring | None = None
        self._lease: Lease | None = None
        self._stream: Stream[Encoded] | None = None
        self._timeout: asyncio.TimerHandle | None = None

    @property
    def held_nbytes(self) -> int:
        """Bytes of media that it keeps until its end: none."""
        return 0

    def end(self, error: InferdError) -> None:
        """End the request from outside with `error`, wherever it stands. The first reason given counts. Synchronous."""
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

    async def run(self) -> Vectors:
        """The vectors.

        Raises:
            InferdError: every other outcome.
        """
        try:
            self._prepared = await self._prepare(self.entry)
            self.check_ended()
            self._caller.take_prompt(self._usage().prompt_tokens)
            while len(self._vectors) < len(self._prepared.sequences):
                await self._attempt()
            return self._result()
        except asyncio.CancelledError:
            if self._error is not None and not is_cancelled():
                raise self._error from None
            raise
        finally:
            if self._timeout is not None:
                self._timeout.cancel()
            if self.stage in {Stage.RUNNING, Stage.INTERRUPTED}:
                self._observer.ended(self._usage(), self._stopwatch.timing())

    async def _attempt(self) -> None:
        """What can be encoded while the model is (again) resident."""
        try:
            lease = self._registry.lease_now(self._lease_request()) or await self._wait()
        except InferdError as error:
            await self._follow_name(error)
            return
        self._lease = lease
        try:
            async with lease:
                await self._encode(lease)
        except Interrupted as signal:
            self._note_interruption(signal)
        finally:
            self._preemptions_by = lease.preemptions
            self._lease = None

    async def _wait(self) -> Lease:
        self.check_ended()
        self._note_waiting()
        acquiring = self._acquiring = Acquiring(self._registry, self._lease_request(), tell_waiting=False)
        try:
            await acquiring.next()
            lease = acquiring.take()
        finally:
            acquiring.close()
            self._acquiring = None
        self._stopwatch.loaded(lease.loading_seconds)
        self._observer.loaded(lease.loading_seconds)
        return lease

    async def _follow_name(self, error: InferdError) -> None:
        """A new configuration may have pointed the name that was asked for to another model while this waited."""
        if error.reason is not Reason.MODEL_NOT_FOUND:
            raise error
        entry = self._registry.resolve(self.request.model)
        if entry.name == self.entry.name:
            raise error
        await self._start_for(entry)

    async def _start_for(self, entry: ModelEntry) -> None:
        """Vectors of other weights can't stand beside each other: begin anew."""
        self.entry = entry
        self._vectors.clear()
        self._prepared = await self._prepare(entry)

    async def _encode(self, lease: Lease) -> None:
        if not same_files(lease.entry, self.entry):
            await self._start_for(lease.entry)
        self.check_ended()
        self._generation = lease.generation
        async with aclosing(self._submit(lease)) as stream:
            self._stream = stream
            # A model that is preempted, unloaded or dead gets its lease back at once.
            stream.on_failure = lease.release
            try:
                if not stream.is_admitted:
                    self._note_waiting()
                await stream.admitted()
                self._note_admission()
                async for pieces in stream:
                    self._stopwatch.token()
                    for piece in pieces:
                        self._vectors.update(piece.vectors)
            finally:
                self._stream = None

    def _submit(self, lease: Lease) -> Stream[Encoded]:
        scheduler = lease.resident
        assert isinstance(scheduler, Scheduler)
        prepared = self._prepared
        left = tuple((i, each.ids) for i, each in enumerate(prepared.sequences) if i not in self._vectors)
        return scheduler.submit(
            EncodeRequest(left, prepared.normalize, prepared.dimensions, prepared.second_from),
            priority=self.request.scheduling.priority,
            coalesce_seconds=0.0,
        )

    def _lease_request(self) -> LeaseRequest:
        scheduling = self.request.scheduling
        return LeaseRequest(
            model=self.entry.name,
            policy=scheduling.contention or self._options.policy,
            priority=scheduling.priority,
            preemptible=scheduling.preemptible,
            load_if_needed=scheduling.load_if_needed,
            interrupted=self._was_handed_back,
            work_done=lambda: sum(len(self._prepared.sequences[i].ids) for i in self._vectors),
            preemptions=self._preemptions_by,
        )

    def _note_waiting(self) -> None:
        if self.stage is Stage.PREPARING:
            self._check_queue(self)
            self.stage = Stage.WAITING

    def _note_admission(self) -> None:
        is_first = self.stage is not Stage.INTERRUPTED
        self.stage = Stage.RUNNING
        self._stopwatch.admitted()
        if is_first:
            timing = self._stopwatch.timing()
            self._observer.admitted(timing.queue, timing.load)
        else:
            self._observer.resumed()
        limit = self._options.request_timeout_seconds
        if self._timeout is None and limit:
            self._timeout = asyncio.get_running_loop().call_later(limit, self.end, request_timeout(limit))

    def _note_interruption(self, signal: Interrupted) -> None:
        if not self._options.may_resume(self._deadline, self._clock()):
            raise preempted(self.entry.name, signal.by_model)
        self._was_handed_back = True
        if self.stage is Stage.RUNNING:
            self._preemptions += 1
            self._observer.interrupted()
            self.stage = Stage.INTERRUPTED
        self._stopwatch.interrupted()

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=self._prepared.tokens)

    def _result(self) -> Vectors:
        return Vectors(
            request_id=self.request.request_id,
            entry=self.entry,
            model=ServedModel(self.entry.name, self.entry.revision, self._generation),
            vectors=tuple(self._vectors[i] for i in range(len(self._prepared.sequences))),
            truncated=self._prepared.truncated,
            usage=self._usage(),
            preemptions=self._preemptions,
        )
