"""One request in flight: prompt, lease, stream, interruption and resume, end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from inferd_server.core.constraints import Grammar
from inferd_server.core.errors import InferdError, Reason, preempted, request_timeout
from inferd_server.core.generation import (
    ChatPrompt,
    DecodeRequest,
    Event,
    Finished,
    GenerationRequest,
    Sampling,
    ServedModel,
    Started,
    Token,
    Usage,
    Waiting,
    WaitState,
)
from inferd_server.core.media import PictureFeatures
from inferd_server.core.model import Clock, ContentionPolicy, Interrupted, ModelEntry
from inferd_server.core.observer import UNOBSERVED, GenerationObserver
from inferd_server.registry.lease import Lease
from inferd_server.registry.registry import LeaseRequest, Registry
from inferd_server.scheduler.scheduler import Scheduler
from inferd_server.scheduler.stream import Stream

from .acquiring import Acquiring
from .assembly import Assembly
from .callers import Caller
from .in_flight import Stage
from .limits import LengthLimit
from .stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request's prompt and choices, ready for an engine."""

    ids: tuple[int, ...]
    rendered: str
    sampling: Sampling
    limit: LengthLimit
    end_ids: frozenset[int]
    assembly: Assembly
    grammar: Grammar | None = None
    pictures: PictureFeatures | None = None


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The server's side of every request; times in seconds."""

    policy: ContentionPolicy
    coalesce_seconds: float = 0.010
    request_timeout_seconds: float = 600.0
    resume_preempted: bool = True
    resume_margin_seconds: float = 1.0

    def may_resume(self, deadline: float | None, now: float) -> bool:
        """Whether a request that was interrupted now goes on later; `deadline` is its caller's own."""
        return self.resume_preempted and (deadline is None or deadline - now > self.resume_margin_seconds)


class Generation:
    """One request from its prompt to its end. `events` runs once."""

    def __init__(
        self,
        request: GenerationRequest,
        entry: ModelEntry,
        caller: Caller,
        registry: Registry,
        options: GenerationOptions,
        clock: Clock,
        deadline: float | None,
        prepare: Callable[[GenerationRequest, ModelEntry], Awaitable[PreparedPrompt]],
        check_queue: Callable[["Generation"], None],
        observer: GenerationObserver = UNOBSERVED,
    ) -> None:
        """`prepare` makes the prompt ready for a model; `check_queue` raises QUEUE_FULL where no more may wait."""
        self.request = request
        self.entry = entry
        self.stage = Stage.PREPARING
        self.prepared: PreparedPrompt | None = None
        self._caller = caller
        self._registry = registry
        self._options = options
        self._clock = clock
        self._deadline = deadline
        self._prepare = prepare
        self._check_queue = check_queue
        self._stopwatch = Stopwatch(clock)
        self._observer = observer
        self._preemptions = 0
        self._media_nbytes = request.prompt.media_nbytes if isinstance(request.prompt, ChatPrompt) else 0
        self._was_handed_back = False  # by a preemption, running or not yet admitted: it asks as one interrupted
        self._preemptions_by: tuple[tuple[str, float], ...] = ()
        self._error: InferdError | None = None
        self._acquiring: Acquiring | None = None
        self._lease: Lease | None = None
        self._stream: Stream[Token] | None = None
        self._timeout: asyncio.TimerHandle | None = None

    @property
    def held_nbytes(self) -> int:
        """Bytes of media that it keeps until its end, as they came and as they were read."""
        pictures = None if self.prepared is None else self.prepared.pictures
        return self._media_nbytes + (0 if pictures is None else pictures.nbytes)

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

    async def events(self) -> AsyncGenerator[Event, None]:
        """Waiting* Started Delta* Finished.

        Raises:
            InferdError: anything else; with completion_tokens once it has started.
        """
        try:
            self.prepared = await self._prepare(self.request, self.entry)
            self.check_ended()
            self._caller.take_prompt(len(self.prepared.ids))
            async with aclosing(self._attempts()) as attempts:
                async for event in attempts:
                    yield event
            yield self._finished(self.prepared)
        except InferdError as error:
            raise self._with_counts(error) from None
        except asyncio.CancelledError:
            if self._error is not None and not is_cancelled():
                raise self._with_counts(self._error) from None
            raise
        finally:
            if self._timeout is not None:
                self._timeout.cancel()
            if self._has_started and self.prepared is not None:
                self._observer.ended(_usage(self.prepared), self._stopwatch.timing())

    async def _attempts(self) -> AsyncGenerator[Event, None]:
        """One attempt for each time that the model is (again) resident, until the output has ended."""
        while self._output.finish_reason is None:
            try:
                lease = self._registry.lease_now(self._lease_request())
                if lease is None:
                    async with aclosing(self._wait()) as waits:
                        async for waiting in waits:
                            yield waiting
                    lease = self._take_lease()
            except InferdError as error:
                await self._follow_name(error)
                continue
            self._lease = lease
            try:
                async with lease, aclosing(self._decode(lease)) as events:
                    async for event in events:
                        yield event
            except Interrupted as signal:
                self._note_interruption(signal)
                if self.request.waiting_events:
                    yield Waiting(WaitState.PREEMPTED)
            finally:
                self._preemptions_by = lease.preemptions
                self._lease = None

    @property
    def _output(self) -> Assembly:
        assert self.prepared is not None, "events prepares first"
        return self.prepared.assembly

    async def _follow_name(self, error: InferdError) -> None:
        """A new configuration may have removed the model while the request waited, and pointed the name that was asked
        for to another one: then it goes on with that. Raises `error` in every other case."""
        if error.reason is not Reason.MODEL_NOT_FOUND or self._output.emitted_ids:
            raise error
        entry = self._registry.resolve(self.request.model)
        if entry.name == self.entry.name:
            raise error
        await self._prepare_for(entry)

    async def _fit_to(self, entry: ModelEntry) -> None:
        """The instance may have been loaded from other files than the prompt was prepared for (a reload, a new
        configuration): prepare it anew. Output of other weights can't be continued."""
        if same_files(entry, self.entry):
            return
        if self._output.emitted_ids:
            raise preempted(self.entry.name, self.entry.name)
        await self._prepare_for(entry)

    async def _prepare_for(self, entry: ModelEntry) -> None:
        self.entry = entry
        self.prepared = await self._prepare(self.request, entry)

    async def _wait(self) -> AsyncGenerator[Waiting, None]:
        self.check_ended()
        self._note_waiting()
        acquiring = Acquiring(self._registry, self._lease_request(), tell_waiting=self.request.waiting_events)
        self._acquiring = acquiring
        try:
            while (waiting := await acquiring.next()) is not None:
                yield waiting
            self._lease = acquiring.take()
        finally:
            acquiring.close()
            self._acquiring = None

    def _take_lease(self) -> Lease:
        lease = self._lease
        assert lease is not None, "the wait ended without a lease and without an error"
        self._stopwatch.loaded(lease.loading_seconds)
        self._observer.loaded(lease.loading_seconds)
        return lease

    def _note_waiting(self) -> None:
        """It has to wait, for its model or for a row: if that is new, the bounds on how many may do so apply."""
        if self.stage is Stage.PREPARING:
            self._check_queue(self)
            self.stage = Stage.WAITING

    async def _decode(self, lease: Lease) -> AsyncGenerator[Event, None]:
        await self._fit_to(lease.entry)
        self.check_ended()
        prepared = self.prepared
        assert prepared is not None
        async with aclosing(self._submit(prepared, lease)) as stream:
            self._stream = stream
            # A model that is preempted, unloaded or dead gets its lease back even while the reader takes nothing.
            stream.on_failure = lease.release
            try:
                if not stream.is_admitted:
                    self._note_waiting()
                while (position := await stream.next_position()) is not None:
                    yield Waiting(WaitState.QUEUED, position)
                if self._admit():
                    yield self._started(prepared, lease)
                async for tokens in stream:
                    gap_seconds = self._stopwatch.token()
                    before = len(prepared.assembly.emitted_ids)
                    delta = prepared.assembly.add(tokens)
                    self._caller.charge_output(delta.completion_tokens - before)
                    self._observer.output(gap_seconds, delta.completion_tokens)
                    if delta.text or delta.reasoning or delta.tool_calls or delta.token_ids or delta.logprobs:
                        yield delta
                    if prepared.assembly.finish_reason is not None:
                        return
            finally:
                self._stream = None

    def _submit(self, prepared: PreparedPrompt, lease: Lease) -> Stream[Token]:
        scheduler = lease.resident
        assert isinstance(scheduler, Scheduler)
        emitted = prepared.assembly.emitted_ids
        request = DecodeRequest(
            prompt_ids=prepared.ids,
            sampling=prepared.sampling,
            max_tokens=prepared.limit.tokens - len(emitted),
            end_ids=prepared.end_ids,
            emitted_ids=tuple(emitted),
            top_logprobs=self.request.output.top_logprobs,
            grammar=prepared.grammar,
            cache_identity=self._caller.cache_identity,
            session_id=self.request.session_id,
            pictures=prepared.pictures,
        )
        asked = self.request.coalesce_seconds
        coalesce_seconds = self._options.coalesce_seconds if asked is None else asked
        return scheduler.submit(
            request,
            priority=self.request.scheduling.priority,
            coalesce_seconds=coalesce_seconds,
            tell_position=self.request.waiting_events,
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
            work_done=self._work_done,
            preemptions=self._preemptions_by,
        )

    def _work_done(self) -> int:
        prepared = self.prepared
        return 0 if prepared is None else len(prepared.ids) + len(prepared.assembly.emitted_ids)

    def _admit(self) -> bool:
        """Note the admission; whether it was the first."""
        first = self.stage is not Stage.INTERRUPTED
        self.stage = Stage.RUNNING
        self._stopwatch.admitted()
        if first:
            timing = self._stopwatch.timing()
            self._observer.admitted(timing.queue, timing.load)
        else:
            self._observer.resumed()
        if self._timeout is None and self._options.request_timeout_seconds:
            limit = self._options.request_timeout_seconds
            self._timeout = asyncio.get_running_loop().call_later(limit, self.end, request_timeout(limit))
        return first

    def _note_interruption(self, signal: Interrupted) -> None:
        if not self._options.may_resume(self._deadline, self._clock()):
            raise preempted(self.entry.name, signal.by_model)
        self._was_handed_back = True
        if self.stage is Stage.RUNNING:
            self._preemptions += 1
            self._observer.interrupted()
            self.stage = Stage.INTERRUPTED
        self._stopwatch.interrupted()

    def _started(self, prepared: PreparedPrompt, lease: Lease) -> Started:
        return Started(
            request_id=self.request.request_id,
            model=ServedModel(self.entry.name, self.entry.revision, lease.generation),
            prompt_tokens=len(prepared.ids),
            rendered_prompt=prepared.rendered if self.request.output.rendered_prompt else "",
        )

    def _finished(self, prepared: PreparedPrompt) -> Finished:
        assembly = prepared.assembly
        assert assembly.finish_reason is not None
        return Finished(
            finish_reason=assembly.finish_reason,
            matched_stop=assembly.matched_stop,
            usage=_usage(prepared),
            timing=self._stopwatch.timing(),
            preemptions=self._preemptions,
        )

    def check_ended(self) -> None:
        """Raise what `end` was given, if it was called."""
        if self._error is not None:
            raise self._error

    @property
    def _has_started(self) -> bool:
        return self.stage in {Stage.RUNNING, Stage.INTERRUPTED}

    def _with_counts(self, error: InferdError) -> InferdError:
        if not self._has_started:
            return error
        return error.with_facts(request_id=self.request.request_id, completion_tokens=len(self._output.emitted_ids))


def is_cancelled() -> bool:
    """Whether this task is being cancelled; else a CancelledError came from what it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _usage(prepared: PreparedPrompt) -> Usage:
    assembly = prepared.assembly
    return Usage(len(prepared.ids), assembly.cached_prompt_tokens, len(assembly.emitted_ids))


def same_files(one: ModelEntry, other: ModelEntry) -> bool:
    """Whether two instances were loaded from the same files."""
    return _files(one) == _files(other)


def _files(entry: ModelEntry) -> tuple[Path, Path | None, str]:
    return entry.engine.path, entry.engine.adapter_path, entry.revision
