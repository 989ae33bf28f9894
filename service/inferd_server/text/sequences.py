"""Texts as the token sequences that an encoder reads: special tokens around them, cut at a length. No arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferd_server.core.errors import model_unsupported

from .tokenizer import Tokenizer

PART_CHARACTERS = 65_536
"""A longer text is tokenized in parts: one call for all of it would take up to 230 bytes and 5 microseconds each."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One text.

    Attributes:
        ids: what an encoder reads, special tokens included; of a text that is too long, its beginning.
        tokens: of the whole text, special tokens included.
        is_counted: whether `tokens` is exact; else nobody counted to the text's end.
    """

    ids: tuple[int, ...]
    tokens: int
    is_counted: bool = True

    @property
    def is_cut(self) -> bool:
        """Whether `ids` is not all of it."""
        return len(self.ids) < self.tokens


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around each text, and is never cut: special tokens, and a query before a document."""

    before: tuple[int, ...]
    behind: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """All of them."""
        return len(self.before) + len(self.behind)


class Sequencer:
    """One tokenizer's way to make sequences; may be used from several threads at once.

    A text that is cut loses its end and keeps its special tokens, as transformers' truncation has it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises InferdError MODEL_UNSUPPORTED where the special tokens are not around the text."""
        self._backend: Any = tokenizer.backend
        (plain,), (whole,) = self._encode(["a"]), self._encode(["a"], add_special_tokens=True)
        begin = find(whole, plain)
        if not plain or begin is None:
            raise model_unsupported(tokenizer.name, "the tokenizer's special tokens are not around the text")
        self._frame = Frame(tuple(whole[:begin]), tuple(whole[begin + len(plain) :]))

    def sequences(self, texts: Sequence[str], max_tokens: int, frame: Frame | None = None) -> list[TokenSequence]:
        """One for each text; none has more than `max_tokens` ids. Blocking.

        Args:
            frame: what to put around each text; None: the tokenizer's special tokens. It has less than `max_tokens`.
        """
        frame = frame or self._frame
        short = [text if len(text) <= PART_CHARACTERS else "" for text in texts]
        encoded = self._encode(short)
        return [
            _around(frame, ids, len(ids), max_tokens)
            if len(text) <= PART_CHARACTERS
            else self._of_long_text(text, max_tokens, frame)
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def _of_long_text(self, text: str, max_tokens: int, frame: Frame) -> TokenSequence:
        ids: list[int] = []
        for start in range(0, len(text), PART_CHARACTERS):
            ids += self._encode([text[start : start + PART_CHARACTERS]])[0]
            if len(ids) > max_tokens:
                return _around(frame, ids, len(ids), max_tokens, is_counted=start + PART_CHARACTERS >= len(text))
        return _around(frame, ids, len(ids), max_tokens)

    def _encode(self, texts: list[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        encoded = self._backend(
            texts, add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids


def _around(frame: Frame, ids: list[int], tokens: int, max_tokens: int, *, is_counted: bool = True) -> TokenSequence:
    kept = ids[: max(0, max_tokens - frame.tokens)]
    return TokenSequence((*frame.before, *kept, *frame.behind), tokens + frame.tokens, is_counted)


def find(whole: list[int], part: list[int], start: int = 0) -> int | None:
    """Where `part` first stands in `whole`, not before `start`."""
    places = (i for i in range(start, len(whole) - len(part) + 1) if whole[i : i + len(part)] == part)
    return next(places, None)
