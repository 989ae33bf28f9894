"""All Rerank requests: what they need before an engine, and their answers."""

import asyncio
import functools
import math
import struct
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from inferd_server.core.embedding import Truncation
from inferd_server.core.errors import FieldViolation, capability_missing, texts_too_long
from inferd_server.core.model import Capability, ModelEntry, RerankerFacts
from inferd_server.core.observer import UNOBSERVED, GenerationObserver
from inferd_server.core.reranking import Reranking, RerankRequest, Scored
from inferd_server.text.pairs import Pairs
from inferd_server.text.sequences import Frame
from inferd_server.text.texts import Texts
from inferd_server.text.tokenizer import Tokenizer

from .callers import Caller
from .encoding import Prepared
from .encodings import Encodings, check_lengths, check_limit, sequences_of, too_long


class Rerankings:
    """Lives on the event loop."""

    def __init__(self, encodings: Encodings, texts: Texts) -> None:
        self._encodings = encodings
        self._texts = texts
        self._pairs: WeakKeyDictionary[Tokenizer, Pairs] = WeakKeyDictionary()

    async def rerank(
        self,
        request: RerankRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver = UNOBSERVED,
    ) -> Reranking:
        """Run a request; arguments and errors are those of Encodings.run."""
        found = await self._encodings.run(
            request, functools.partial(self._prepare, request), caller=caller, deadline=deadline, observer=observer
        )
        logits = [struct.unpack("<f", vector)[0] for vector in found.vectors]
        applies_sigmoid = checked_reranker(found.entry).applies_sigmoid
        best = ranked(map(sigmoid, logits) if applies_sigmoid else logits)
        return Reranking(
            request_id=found.request_id,
            model=found.model,
            best=best[: request.top_n or len(best)],
            truncated=found.truncated,
            usage=found.usage,
            preemptions=found.preemptions,
        )

    async def _prepare(self, request: RerankRequest, caller: Caller, entry: ModelEntry) -> Prepared:
        facts = checked_reranker(entry)
        tokenizer = await self._texts.get(entry)
        pairs = self._pairs.get(tokenizer)
        if pairs is None:
            pairs = self._pairs[tokenizer] = Pairs(tokenizer)
        frame = await _frame(pairs, request.query, facts)
        found = await sequences_of(pairs.sequencer, request.documents, facts.max_tokens, frame=frame)
        if request.truncation is not Truncation.END:
            check_lengths("documents", found, facts.max_tokens)
        prepared = Prepared(found, second_from=len(frame.before) if pairs.has_segments else 0)
        check_limit("documents", prepared, caller)
        return prepared


def checked_reranker(entry: ModelEntry) -> RerankerFacts:
    """What the model's folder says, if it is a reranker.

    Raises:
        InferdError: CAPABILITY_MISSING.
    """
    if entry.reranker is None:
        text = f"model {entry.name!r} can't rerank: capability 'rerank' is missing"
        raise capability_missing(entry.name, Capability.RERANK, text)
    return entry.reranker


def ranked(scores: Iterable[float]) -> tuple[Scored, ...]:
    """The best first; equal ones by their index."""
    return tuple(sorted((Scored(i, score) for i, score in enumerate(scores)), key=lambda each: -each.score))


def sigmoid(logit: float) -> float:
    """Between 0 and 1."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else (raised := math.exp(logit)) / (1 + raised)


async def _frame(pairs: Pairs, text: str, facts: RerankerFacts) -> Frame:
    """What stands around each document: the query, with room left for one token.

    Raises:
        InferdError: PROMPT_TOO_LONG.
    """
    query = await asyncio.to_thread(pairs.query, text, facts.max_tokens)
    frame = pairs.frame(query)
    if query.is_cut or frame.tokens >= facts.max_tokens:
        found = FieldViolation("query", f"{too_long(query, facts.max_tokens)} of a query and a document together")
        raise texts_too_long([found], query.tokens, facts.max_tokens)
    return frame
