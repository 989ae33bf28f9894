"""One request of Embed or Rerank in flight: texts into sequences, lease, vectors, interruption and resume, end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from inferd_server.core.embedding import EmbedRequest, Encoded, EncodeRequest
from inferd_server.core.errors import InferdError
from inferd_server.core.generation import ServedModel, Usage
from inferd_server.core.model import Interrupted, ModelEntry
from inferd_server.core.reranking import RerankRequest
from inferd_server.registry.lease import Lease
from inferd_server.scheduler.scheduler import Scheduler
from inferd_server.scheduler.stream import Stream
from inferd_server.text.sequences import TokenSequence

from .served_request import ServedRequest, Surroundings, same_files


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


class EncodingRun(ServedRequest):
    """One request from its texts to their vectors. `run` runs once."""

    def __init__(
        self, request: EmbedRequest | RerankRequest, entry: ModelEntry, prepare: Prepare, around: Surroundings
    ) -> None:
        """`prepare` makes the texts ready for a model."""
        super().__init__(request, entry, around)
        self.request = request
        self._prepare = prepare
        self._prepared = Prepared(())
        self._vectors: dict[int, bytes] = {}
        self._generation = 0  # of the instance that made the vectors

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
            if (ending := self._ending()) is not None:
                raise ending from None
            raise
        finally:
            self._stop_timeout()
            if self._has_started:
                self._observer.ended(self._usage(), self._stopwatch.timing())

    async def _attempt(self) -> None:
        """What can be encoded while the model is (again) resident."""
        try:
            lease = self._around.registry.lease_now(self._lease_request()) or await self._wait()
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
        acquiring = self._start_waiting(tell_waiting=False)
        try:
            await acquiring.next()
            return self._note_lease(acquiring.take())
        finally:
            self._stop_waiting()

    async def _prepare_for(self, entry: ModelEntry) -> None:
        """Vectors of other weights can't stand beside each other: begin anew."""
        self.entry = entry
        self._vectors.clear()
        self._prepared = await self._prepare(entry)

    async def _encode(self, lease: Lease) -> None:
        if not same_files(lease.entry, self.entry):
            await self._prepare_for(lease.entry)
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

    def _work_done(self) -> int:
        return sum(len(self._prepared.sequences[i].ids) for i in self._vectors)

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
