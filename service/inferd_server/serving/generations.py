"""All requests in flight: their ids, the bound on how many wait, cancel, drain."""

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from inferd_server.core.errors import (
    InferdError,
    cancelled_by_request,
    queue_full,
    request_id_in_use,
    server_draining,
    server_shutdown,
)
from inferd_server.core.generation import ChatPrompt, Event, GenerationRequest, Prompt, RawPrompt, TokenPrompt
from inferd_server.core.model import Clock, ModelEntry
from inferd_server.core.observer import UNOBSERVED, Observer
from inferd_server.registry.registry import Registry
from inferd_server.text.constraints import Constraints
from inferd_server.text.texts import Texts
from inferd_server.text.tokenizer import Tokenizer

from .assembly import Assembly
from .generation import Generation, GenerationOptions, PreparedPrompt, Stage
from .limits import check_prompt_ids, check_request, length_limit, resolve_sampling
from .splitting import splitter_for

INLINE_CHARACTERS = 2000
"""Prompts up to so many characters are tokenized on the loop (about a millisecond); longer ones in a thread."""

MAX_PREPARING = 4096
"""Prompts being tokenized at a time; apart from max_queue, since most of them will find a free row."""

COUNTED_CONTEXTS = 4
"""How many contexts long a prompt may be for Tokenize to count it."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The server's side of all requests."""

    generation: GenerationOptions
    max_queue: int = 1024


class Generations:
    """The table of requests in flight. Lives on the event loop."""

    def __init__(
        self,
        registry: Registry,
        texts: Texts,
        options: ServingOptions,
        *,
        clock: Clock = time.monotonic,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._registry = registry
        self._texts = texts
        self._constraints = Constraints()
        self._options = options
        self._clock = clock
        self._observer = observer
        self._in_flight: dict[str, Generation] = {}
        self._changed = asyncio.Event()
        self._refusal: InferdError | None = None

    async def stream(self, request: GenerationRequest, *, deadline: float | None = None) -> AsyncGenerator[Event, None]:
        """Run a request: Waiting* Started Delta* Finished. Closing the generator cancels it.

        Args:
            request: an empty request_id is replaced by a fresh one.
            deadline: when the caller's own deadline ends, on the clock given at construction.

        Raises:
            InferdError: every other outcome.
        """
        if self._refusal is not None:
            raise self._refusal
        generation = self._enter(request, self._registry.resolve(request.model), deadline)
        try:
            async with aclosing(generation.events()) as events:
                async for event in events:
                    yield event
        finally:
            del self._in_flight[generation.request.request_id]
            self._changed.set()

    def cancel(self, request_id: str) -> bool:
        """End the request of this id with CANCELLED_BY_REQUEST; whether there was one."""
        generation = self._in_flight.get(request_id)
        if generation is None:
            return False
        generation.end(cancelled_by_request(request_id))
        return True

    async def tokenize(self, model: str, prompt: Prompt) -> tuple[list[int], int]:
        """The prompt's ids and the model's context length in tokens; loads no weights.

        Raises:
            InferdError: PROMPT_TOO_LONG far beyond the context: counting takes time and memory for each token.
        """
        entry = self._registry.resolve(model)
        tokenizer = await self._texts.get(entry)
        _, ids = await _encode(tokenizer, prompt, COUNTED_CONTEXTS * entry.context_length)
        return ids, entry.context_length

    @property
    def in_flight(self) -> int:
        """How many requests are in flight, waiting ones included."""
        return len(self._in_flight)

    def refuse(self) -> None:
        """From now on nothing new starts and what has not started ends, both with SERVER_DRAINING; what runs, or was
        interrupted while running, goes on."""
        self._refusal = server_draining()
        for generation in list(self._in_flight.values()):
            if generation.stage in {Stage.PREPARING, Stage.WAITING}:
                generation.end(server_draining())

    async def drain(self, timeout_seconds: float) -> int:
        """`refuse`, then wait until nothing is in flight; what is left after the timeout ends with SERVER_SHUTDOWN.
        Returns how many were cut."""
        self.refuse()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._empty()
        except TimeoutError:
            return self.cut()
        return 0

    def cut(self) -> int:
        """End everything in flight with SERVER_SHUTDOWN; returns how many there were."""
        left = list(self._in_flight.values())
        for generation in left:
            generation.end(server_shutdown())
        return len(left)

    async def _empty(self) -> None:
        while self._in_flight:
            self._changed.clear()
            await self._changed.wait()

    def _enter(self, request: GenerationRequest, entry: ModelEntry, deadline: float | None) -> Generation:
        request_id = request.request_id or str(uuid.uuid4())
        if request_id in self._in_flight:
            raise request_id_in_use(request_id)
        if sum(other.stage is Stage.PREPARING for other in self._in_flight.values()) >= MAX_PREPARING:
            raise queue_full("", MAX_PREPARING)
        generation = Generation(
            replace(request, request_id=request_id),
            entry,
            self._registry,
            self._options.generation,
            self._clock,
            deadline,
            self._prepare,
            self._check_queue,
            self._observer.generation(entry.name),
        )
        self._in_flight[request_id] = generation
        return generation

    async def _prepare(self, request: GenerationRequest, entry: ModelEntry) -> PreparedPrompt:
        check_request(request, entry)
        tokenizer = await self._texts.get(entry)
        rendered, ids = await _encode(tokenizer, request.prompt, entry.context_length)
        check_prompt_ids(request.prompt, ids, entry)
        limit = length_limit(request.stop, len(ids), entry)
        constraint = request.output.constraint
        grammar = None if constraint is None else await self._constraints.compile(tokenizer, constraint)
        detokenizer = tokenizer.detokenizer(keeps_space=constraint is not None)
        splitter = await splitter_for(request, entry, rendered)
        stop_ids = frozenset(request.stop.token_ids)
        return PreparedPrompt(
            ids=tuple(ids),
            rendered=rendered,
            sampling=resolve_sampling(request.sampling, entry.defaults, secrets.randbits(64)),
            limit=limit,
            end_ids=stop_ids if request.stop.ignore_eos else stop_ids | tokenizer.end_ids,
            assembly=Assembly(detokenizer, request.stop.sequences, stop_ids, request.output, limit.reason, splitter),
            grammar=grammar,
        )

    def _check_queue(self, generation: Generation) -> None:
        """Refuse one more waiting request than the bounds allow. Asked only when a request has to wait: one that finds
        its model LOADED and a free row is never refused, whoever waits for other models."""
        waiting = [other for other in self._in_flight.values() if other.stage is Stage.WAITING]
        entry = generation.entry
        if sum(other.entry.name == entry.name for other in waiting) >= entry.max_queue:
            raise queue_full(entry.name, entry.max_queue)
        if len(waiting) >= self._options.max_queue:
            raise queue_full("", self._options.max_queue)


async def _encode(tokenizer: Tokenizer, prompt: Prompt, context_length: int) -> tuple[str, list[int]]:
    """(rendered prompt, ids); off the loop where it may take long."""
    if isinstance(prompt, TokenPrompt):
        return "", list(prompt.ids)
    if _characters(prompt) <= INLINE_CHARACTERS:
        return _encode_now(tokenizer, prompt, context_length)
    return await asyncio.to_thread(_encode_now, tokenizer, prompt, context_length)


def _encode_now(tokenizer: Tokenizer, prompt: RawPrompt | ChatPrompt, context_length: int) -> tuple[str, list[int]]:
    if isinstance(prompt, RawPrompt):
        return prompt.text, tokenizer.encode(prompt.text, context_length=context_length)
    return tokenizer.encode_chat(prompt, context_length=context_length)


def _characters(prompt: RawPrompt | ChatPrompt) -> int:
    if isinstance(prompt, RawPrompt):
        return len(prompt.text)
    messages = sum(len(part) + 16 for message in prompt.messages for part in message.text_parts)
    calls = sum(len(call.arguments_json) for message in prompt.messages for call in message.tool_calls)
    tools = sum(len(tool.description) + len(tool.parameters_json) + 64 for tool in prompt.tools)
    return messages + calls + tools
