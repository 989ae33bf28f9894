"""Log-probabilities under the raw logits (before bias, penalties and temperature), for the rows that ask for them."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from inferd_server.core.generation import TokenLogprob


class Logprobs:
    """Computes logprobs for a fixed batch.

    Args:
        wanted: for each row of the batch the number of alternatives, or None for no logprobs.
    """

    def __init__(self, wanted: Sequence[int | None], vocabulary_size: int) -> None:
        self.numbers = [number for number, top in enumerate(wanted) if top is not None]
        self._tops = [min(top, vocabulary_size) for top in wanted if top is not None]
        self._index = mx.array(self.numbers)

    def compute(self, logits: Any, tokens: Any) -> tuple[Any, ...]:
        """Lazy arrays for `read`: logits are [rows, vocabulary], tokens [rows]."""
        raw = logits[self._index].astype(mx.float32)
        logprobs = raw - mx.logsumexp(raw, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, tokens[self._index][:, None], axis=-1)[:, 0]
        most = max(self._tops)
        if not most:
            return (chosen,)
        best = mx.argpartition(-logprobs, kth=most - 1, axis=-1)[:, :most]
        order = mx.argsort(-mx.take_along_axis(logprobs, best, axis=-1), axis=-1)
        best = mx.take_along_axis(best, order, axis=-1)
        return chosen, best, mx.take_along_axis(logprobs, best, axis=-1)

    def read(self, arrays: tuple[Any, ...], tokens: Sequence[int]) -> dict[int, TokenLogprob]:
        """What `compute` found, by row number, as plain numbers: a kept array would pin the whole batch's."""
        chosen, *alternatives = (array.tolist() for array in arrays)
        tops: list[tuple[tuple[int, float], ...]] = [() for _ in self.numbers]
        if alternatives:
            pairs = zip(self._tops, *alternatives, strict=True)
            tops = [tuple(zip(ids[:top], values[:top], strict=True)) for top, ids, values in pairs]
        return {
            number: TokenLogprob(tokens[number], chosen[place], tops[place])
            for place, number in enumerate(self.numbers)
        }
