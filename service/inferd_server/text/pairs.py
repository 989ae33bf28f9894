"""A query and a document as the one token sequence that a reranker reads. No arrays."""

from typing import Any

from inferd_server.core.errors import model_unsupported

from .sequences import Frame, Sequencer, TokenSequence, find
from .tokenizer import Tokenizer

_NOTHING = Frame((), ())


class Pairs:
    """One tokenizer's way to pair texts; may be used from several threads at once.

    Attributes:
        sequencer: makes the pairs, with `frame` around each document.
        has_segments: whether the tokenizer counts the document as a second segment.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises InferdError MODEL_UNSUPPORTED where a pair is not the query, then the document, whole."""
        self.sequencer = Sequencer(tokenizer)
        (plain,) = self.sequencer.sequences(["a"], 2**20, _NOTHING)
        part = list(plain.ids)
        encoded: Any = tokenizer.backend("a", "a", return_attention_mask=False, verbose=False)
        whole: list[int] = encoded["input_ids"]
        first = find(whole, part)
        second = None if first is None else find(whole, part, first + len(part))
        if first is None or second is None:
            raise model_unsupported(tokenizer.name, "the tokenizer does not put a query before a document")
        self._before, self._between = tuple(whole[:first]), tuple(whole[first + len(part) : second])
        self._behind = tuple(whole[second + len(part) :])
        segments: list[int] = encoded.get("token_type_ids") or [0] * len(whole)
        self.has_segments = any(segments)
        if self.has_segments and segments != [0] * second + [1] * (len(whole) - second):
            raise model_unsupported(tokenizer.name, "the tokenizer's segments are not the query and the document")

    def query(self, text: str, max_tokens: int) -> TokenSequence:
        """Its ids alone, of which none beyond `max_tokens` is needed. Blocking."""
        return self.sequencer.sequences([text], max_tokens, _NOTHING)[0]

    def frame(self, query: TokenSequence) -> Frame:
        """What stands around each document."""
        return Frame((*self._before, *query.ids, *self._between), self._behind)
