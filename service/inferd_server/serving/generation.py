"""One request in flight: prompt, lease, stream, interruption and resume, end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from inferd_server.core.constraints import Grammar
from inferd_server.core.errors import InferdError, preempted
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
from inferd_server.core.model import Interrupted, ModelEntry
from inferd_server.registry.lease import Lease
from inferd_server.scheduler.scheduler import Scheduler
from inferd_server.scheduler.stream import Stream

from .assembly import Assembly
from .limits import LengthLimit
from .served_request import ServedRequest, Surroundings, same_files


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


Prepare = Callable[[GenerationRequest, ModelEntry], Awaitable[PreparedPrompt]]


class Generation(ServedRequest):
    """One request from its prompt to its end. `events` runs once."""

    def __init__(self, request: GenerationRequest, entry: ModelEntry, prepare: Prepare, around: Surroundings) -> None:
        """`prepare` makes the prompt ready for a model."""
        super().__init__(request, entry, around)
        self.request = request
        self.prepared: PreparedPrompt | None = None
        self._prepare = prepare
        self._media_nbytes = request.prompt.media_nbytes if isinstance(request.prompt, ChatPrompt) else 0

    @property
    def held_nbytes(self) -> int:
        """Bytes of media that it keeps until its end, as they came and as they were read."""
        pictures = None if self.prepared is None else self.prepared.pictures
        return self._media_nbytes + (0 if pictures is None else pictures.nbytes)

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
            if (ending := self._ending()) is not None:
                raise self._with_counts(ending) from None
            raise
        finally:
            self._stop_timeout()
            if self._has_started and self.prepared is not None:
                self._observer.ended(_usage(self.prepared), self._stopwatch.timing())

    async def _attempts(self) -> AsyncGenerator[Event, None]:
        """One attempt for each time that the model is (again) resident, until the output has ended."""
        while self._output.finish_reason is None:
            try:
                lease = self._around.registry.lease_now(self._lease_request())
                if lease is None:
                    async with aclosing(self._wait()) as waits:
                        async for waiting in waits:
                            yield waiting
                    lease = self._take_lease()
            except InferdError as error:
                await self._follow_name(error, may_begin_anew=not self._output.emitted_ids)
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
        acquiring = self._start_waiting(tell_waiting=self.request.waiting_events)
        try:
            while (waiting := await acquiring.next()) is not None:
                yield waiting
            self._lease = acquiring.take()
        finally:
            self._stop_waiting()

    def _take_lease(self) -> Lease:
        assert self._lease is not None, "the wait ended without a lease and without an error"
        return self._note_lease(self._lease)

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
                if self._note_admission():
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
        coalesce_seconds = self._around.options.coalesce_seconds if asked is None else asked
        return scheduler.submit(
            request,
            priority=self.request.scheduling.priority,
            coalesce_seconds=coalesce_seconds,
            tell_position=self.request.waiting_events,
        )

    def _work_done(self) -> int:
        prepared = self.prepared
        return 0 if prepared is None else len(prepared.ids) + len(prepared.assembly.emitted_ids)

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

    def _with_counts(self, error: InferdError) -> InferdError:
        if not self._has_started:
            return error
        return error.with_facts(request_id=self.request.request_id, completion_tokens=len(self._output.emitted_ids))


def _usage(prepared: PreparedPrompt) -> Usage:
    assembly = prepared.assembly
    return Usage(len(prepared.ids), assembly.cached_prompt_tokens, len(assembly.emitted_ids))
