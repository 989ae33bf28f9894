"""All Embed requests: what they need before an engine, and their answers."""

import asyncio
import functools
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from inferd_server.core.embedding import Embedding, EmbedRequest, Truncation
from inferd_server.core.errors import (
    FieldViolation,
    capability_missing,
    invalid_parameter,
    prompt_over_limit,
    texts_too_long,
)
from inferd_server.core.model import Capability, Clock, EmbedderFacts, ModelEntry
from inferd_server.core.observer import UNOBSERVED, GenerationObserver, Observer, both
from inferd_server.registry.registry import Registry
from inferd_server.text.sequences import Sequencer, TokenSequence
from inferd_server.text.texts import Texts
from inferd_server.text.tokenizer import Tokenizer

from .callers import Caller, Callers
from .embedding import EmbeddingRun
from .generation import GenerationOptions
from .in_flight import InFlight

TEXTS_AT_A_TIME = 64
"""Tokenized on a thread between two moments at which a client that left is noticed."""


class Embeddings:
    """Lives on the event loop. `in_flight` is shared with the requests of other kinds."""

    def __init__(
        self,
        registry: Registry,
        texts: Texts,
        options: GenerationOptions,
        in_flight: InFlight,
        *,
        clock: Clock = time.monotonic,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._registry = registry
        self._texts = texts
        self._options = options
        self._in_flight = in_flight
        self._clock = clock
        self._observer = observer
        self._anonymous = Callers().anonymous
        self._sequencers: WeakKeyDictionary[Tokenizer, Sequencer] = WeakKeyDictionary()

    async def embed(
        self,
        request: EmbedRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver = UNOBSERVED,
    ) -> Embedding:
        """Run a request; cancelling the caller ends it between two batches.

        Args:
            request: an empty request_id is replaced by a fresh one.
            caller: whose it is; None: anybody's, without limits.
            deadline: when the caller's own deadline ends, on the clock given at construction.
            observer: told beside the one given at construction.

        Raises:
            InferdError: every other outcome.
        """
        self._in_flight.check_open()
        entry = self._registry.resolve(request.model)
        request_id = request.request_id or str(uuid.uuid4())
        caller = caller or self._anonymous
        self._in_flight.check_new(request_id, caller.id)
        run = EmbeddingRun(
            replace(request, request_id=request_id),
            entry,
            caller,
            self._registry,
            self._options,
            self._clock,
            deadline,
            functools.partial(self._prepare, caller),
            self._in_flight.check_queue,
            both(self._observer.generation(entry.name), observer),
        )
        with self._in_flight.holding(request_id, run, caller.id):
            return await run.run()

    async def _prepare(self, caller: Caller, request: EmbedRequest, entry: ModelEntry) -> Sequence[TokenSequence]:
        facts = checked_embedder(request, entry)
        tokenizer = await self._texts.get(entry)
        sequencer = self._sequencers.get(tokenizer)
        if sequencer is None:
            sequencer = self._sequencers[tokenizer] = Sequencer(tokenizer)
        prompt = facts.prompts.get(request.prompt_name or facts.default_prompt, "")
        found: list[TokenSequence] = []
        for start in range(0, len(request.texts), TEXTS_AT_A_TIME):
            texts = [prompt + text for text in request.texts[start : start + TEXTS_AT_A_TIME]]
            found += await asyncio.to_thread(sequencer.sequences, texts, facts.max_tokens)
        _check_lengths(request, found, facts)
        tokens, most = sum(len(each.ids) for each in found), caller.max_prompt_tokens
        if most is not None and tokens > most:
            raise prompt_over_limit("texts", tokens, most)
        return found


def checked_embedder(request: EmbedRequest, entry: ModelEntry) -> EmbedderFacts:
    """What the model's folder says, if it is an embedder and has what the request asks for.

    Raises:
        InferdError: CAPABILITY_MISSING, or INVALID_PARAMETER with every violation.
    """
    facts = entry.embedder
    if facts is None:
        text = f"model {entry.name!r} can't embed: capability 'embed' is missing"
        raise capability_missing(entry.name, Capability.EMBED, text)
    found = embedder_violations(facts, request.dimensions, request.prompt_name)
    if found:
        raise invalid_parameter(found)
    return facts


def embedder_violations(facts: EmbedderFacts, dimensions: int, prompt_name: str) -> list[FieldViolation]:
    """What a request asks for that this embedder does not have."""
    found = []
    if dimensions > facts.width:
        found.append(FieldViolation("dimensions", f"{dimensions} is larger than the vectors, {facts.width}"))
    if prompt_name and prompt_name not in facts.prompts:
        named = ", ".join(sorted(facts.prompts)[:16]) or "none"
        found.append(FieldViolation("prompt_name", f"is none of the model's prompts: {named}"))
    return found


def _check_lengths(request: EmbedRequest, found: Sequence[TokenSequence], facts: EmbedderFacts) -> None:
    """Refuse texts that are longer than the model reads, unless they may be cut; and those of no token."""
    empty = [i for i, each in enumerate(found) if not each.ids]
    if empty:
        raise invalid_parameter([FieldViolation(f"texts[{i}]", "has no tokens") for i in empty])
    long = {i: each for i, each in enumerate(found) if each.is_cut}
    if long and request.truncation is not Truncation.END:
        violations = [FieldViolation(f"texts[{i}]", _too_long(each, facts)) for i, each in long.items()]
        raise texts_too_long(violations, max(each.tokens for each in long.values()), facts.max_tokens)


def _too_long(sequence: TokenSequence, facts: EmbedderFacts) -> str:
    count = sequence.tokens if sequence.is_counted else f"at least {sequence.tokens}"
    return f"has {count} tokens; the model reads {facts.max_tokens}"
