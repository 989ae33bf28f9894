"""All Embed requests: what they need before an engine, and their answers."""

import functools
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from inferd_server.core.embedding import Embedding, EmbedRequest, Truncation
from inferd_server.core.errors import FieldViolation, capability_missing, invalid_parameter
from inferd_server.core.model import Capability, EmbedderFacts, ModelEntry
from inferd_server.core.observer import UNOBSERVED, GenerationObserver
from inferd_server.text.sequences import Sequencer, TokenSequence
from inferd_server.text.texts import Texts
from inferd_server.text.tokenizer import Tokenizer

from .callers import Caller
from .encoding import Prepared
from .encodings import Encodings, check_lengths, check_limit, sequences_of


class Embeddings:
    """Lives on the event loop."""

    def __init__(self, encodings: Encodings, texts: Texts) -> None:
        self._encodings = encodings
        self._texts = texts
        self._sequencers: WeakKeyDictionary[Tokenizer, Sequencer] = WeakKeyDictionary()

    async def embed(
        self,
        request: EmbedRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver = UNOBSERVED,
    ) -> Embedding:
        """Run a request; arguments and errors are those of Encodings.run."""
        found = await self._encodings.run(
            request, functools.partial(self._prepare, request), caller=caller, deadline=deadline, observer=observer
        )
        return Embedding(
            request_id=found.request_id,
            model=found.model,
            dimensions=request.dimensions or _embedder_of(found.entry).width,
            vectors=found.vectors,
            truncated=found.truncated,
            usage=found.usage,
            preemptions=found.preemptions,
        )

    async def _prepare(self, request: EmbedRequest, caller: Caller, entry: ModelEntry) -> Prepared:
        facts = checked_embedder(request, entry)
        tokenizer = await self._texts.get(entry)
        sequencer = self._sequencers.get(tokenizer)
        if sequencer is None:
            sequencer = self._sequencers[tokenizer] = Sequencer(tokenizer)
        prompt = facts.prompts.get(request.prompt_name or facts.default_prompt, "")
        found = await sequences_of(sequencer, request.texts, facts.max_tokens, prompt=prompt)
        _check_tokens(found)
        if request.truncation is not Truncation.END:
            check_lengths("texts", found, facts.max_tokens)
        normalize = facts.normalizes if request.normalize is None else request.normalize
        prepared = Prepared(found, normalize, request.dimensions)
        check_limit("texts", prepared, caller)
        return prepared


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


def _check_tokens(found: Sequence[TokenSequence]) -> None:
    """Refuse texts of no token."""
    empty = [i for i, each in enumerate(found) if not each.ids]
    if empty:
        raise invalid_parameter([FieldViolation(f"texts[{i}]", "has no tokens") for i in empty])


def _embedder_of(entry: ModelEntry) -> EmbedderFacts:
    """What an embedder's folder says."""
    assert entry.embedder is not None, "checked before"
    return entry.embedder
