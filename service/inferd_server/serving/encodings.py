"""What Embed and Rerank share before and behind an engine."""

import asyncio
import functools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from inferd_server.core.embedding import EmbedRequest
from inferd_server.core.errors import FieldViolation, prompt_over_limit, texts_too_long
from inferd_server.core.model import Clock, ModelEntry
from inferd_server.core.observer import UNOBSERVED, GenerationObserver, Observer, both
from inferd_server.core.reranking import RerankRequest
from inferd_server.registry.registry import Registry
from inferd_server.text.sequences import Frame, Sequencer, TokenSequence

from .callers import Caller, Callers
from .encoding import EncodingRun, Prepared, Vectors
from .in_flight import InFlight
from .served_request import ServedOptions, Surroundings

TEXTS_AT_A_TIME = 64
"""Tokenized on a thread between two moments at which a client that left is noticed."""


class Encodings:
    """All requests whose texts become vectors. Lives on the event loop. `in_flight` is shared with the requests of
    other kinds."""

    def __init__(
        self,
        registry: Registry,
        options: ServedOptions,
        in_flight: InFlight,
        *,
        clock: Clock = time.monotonic,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._registry = registry
        self._options = options
        self._in_flight = in_flight
        self._clock = clock
        self._observer = observer
        self._anonymous = Callers().anonymous

    async def run(
        self,
        request: EmbedRequest | RerankRequest,
        prepare: Callable[[Caller, ModelEntry], Awaitable[Prepared]],
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver = UNOBSERVED,
    ) -> Vectors:
        """Run a request; cancelling the caller ends it between two batches.

        Args:
            request: an empty request_id is replaced by a fresh one.
            prepare: makes its texts ready for a model.
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
        run = EncodingRun(
            replace(request, request_id=request_id),
            entry,
            functools.partial(prepare, caller),
            Surroundings(
                caller=caller,
                registry=self._registry,
                options=self._options,
                in_flight=self._in_flight,
                clock=self._clock,
                deadline=deadline,
                observer=both(self._observer.generation(entry.name), observer),
            ),
        )
        with self._in_flight.holding(request_id, run, caller.id):
            return await run.run()


async def sequences_of(
    sequencer: Sequencer, texts: Sequence[str], max_tokens: int, *, prompt: str = "", frame: Frame | None = None
) -> list[TokenSequence]:
    """What the model reads of each text behind `prompt`, made off the loop."""
    found: list[TokenSequence] = []
    for start in range(0, len(texts), TEXTS_AT_A_TIME):
        part = [prompt + text for text in texts[start : start + TEXTS_AT_A_TIME]]
        found += await asyncio.to_thread(sequencer.sequences, part, max_tokens, frame)
    return found


def check_lengths(field: str, found: Sequence[TokenSequence], max_tokens: int) -> None:
    """Refuse texts of `field` that are longer than the model reads, all at once.

    Raises:
        InferdError: PROMPT_TOO_LONG.
    """
    long = {i: each for i, each in enumerate(found) if each.is_cut}
    if long:
        violations = [FieldViolation(f"{field}[{i}]", too_long(each, max_tokens)) for i, each in long.items()]
        raise texts_too_long(violations, max(each.tokens for each in long.values()), max_tokens)


def check_limit(field: str, prepared: Prepared, caller: Caller) -> None:
    """Refuse more tokens than the caller's max_prompt_tokens.

    Raises:
        InferdError: PROMPT_TOO_LONG.
    """
    tokens, most = prepared.tokens, caller.max_prompt_tokens
    if most is not None and tokens > most:
        raise prompt_over_limit(field, tokens, most)


def too_long(sequence: TokenSequence, max_tokens: int) -> str:
    """How long it is, and may be."""
    count = sequence.tokens if sequence.is_counted else f"at least {sequence.tokens}"
    return f"has {count} tokens; the model reads {max_tokens}"
