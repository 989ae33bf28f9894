"""From logits to tokens, for all rows of a batch at once.

Rows with the same kinds of filters share one call, their parameters as columns; greedy rows cost one argmax in all.
Filters look at the distribution before temperature, in the order top_p, min_p, top_k, as in mlx_lm. A drawn row uses
key (seed, position) alone, so neither its neighbours nor an interruption change what it draws.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import mlx.core as mx
import numpy as np

from inferd_server.core.generation import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MINUS_INFINITY = -float("inf")
MIN_TEMPERATURE = 1e-5
"""Below this, float32 could not divide by it; the best token has all the mass long before."""

_categorical = mx.vmap(lambda logits, key: mx.random.categorical(logits, key=key))


def is_greedy(sampling: Sampling) -> bool:
    """Whether the best token is always taken."""
    return sampling.temperature == 0 or sampling.top_k == 1


class Sampler:
    """Draws one token for each row of a fixed batch; each call is the next output position.

    Args:
        rows: the rows' settings and the output positions of the first call.
    """

    def __init__(self, rows: Sequence[tuple[Sampling, int]]) -> None:
        drawn = [number for number, (sampling, _) in enumerate(rows) if not is_greedy(sampling)]
        drawn.sort(key=lambda number: _filters(rows[number][0]))
        groups = [list(numbers) for _, numbers in groupby(drawn, key=lambda number: _filters(rows[number][0]))]
        self._groups = [_Group(numbers, [rows[number] for number in numbers]) for numbers in groups]
        self._is_one_group = len(groups) == 1 and len(drawn) == len(rows)
        self._pick = _pick(len(rows), drawn)

    def __call__(self, logits: Any) -> Any:
        """Token ids [rows] for logits [rows, vocabulary]; lazy."""
        if not self._groups:
            return mx.argmax(logits, axis=-1)
        if self._is_one_group:
            return self._groups[0].draw(logits)
        drawn = [group.draw(logits[group.numbers]) for group in self._groups]
        return mx.concatenate([mx.argmax(logits, axis=-1), *drawn])[self._pick]


def _filters(sampling: Sampling) -> tuple[bool, bool, bool]:
    return sampling.top_p < 1, sampling.min_p > 0, sampling.top_k > 0


def _pick(count: int, replaced: Sequence[int]) -> Any:
    """Index into [all rows, then the replaced ones]: each row's own, or its replacement."""
    pick = list(range(count))
    for place, number in enumerate(replaced):
        pick[number] = count + place
    return mx.array(pick)


class _Group:
    """Drawn rows with the same kinds of filters."""

    def __init__(self, numbers: list[int], rows: Sequence[tuple[Sampling, int]]) -> None:
        samplings = [sampling for sampling, _ in rows]
        self.numbers = mx.array(numbers)
        self._has_top_p, self._has_min_p, self._has_top_k = _filters(samplings[0])
        self._temperature = _column([max(s.temperature, MIN_TEMPERATURE) for s in samplings])
        self._top_p = _column([s.top_p for s in samplings])
        self._min_p = _column([max(s.min_p, 1e-30) for s in samplings])
        self._top_k = [s.top_k for s in samplings]
        self._counters = np.array([_counter(s.seed, position) for s, position in rows], dtype=np.uint64)

    def draw(self, logits: Any) -> Any:
        logits = logits.astype(mx.float32)
        logits = logits - mx.max(logits, axis=-1, keepdims=True)
        if self._has_top_p:
            logits = keep_top_p(logits, self._top_p)
        if self._has_min_p:
            logits = mx.where(logits < mx.log(self._min_p), MINUS_INFINITY, logits)
        if self._has_top_k:
            logits = keep_top_k(logits, self._top_k)
        return _categorical(logits / self._temperature, self._next_keys())

    def _next_keys(self) -> Any:
        keys = mx.array(self._counters.view(np.uint32).reshape(-1, 2))
        self._counters += np.uint64(_GOLDEN)
        return keys


def keep_top_p(logits: Any, top_p: Any) -> Any:
    """Mask all but the smallest set of tokens whose mass reaches top_p. Logits' maximum is 0; top_p is a column."""
    ascending = mx.sort(logits, axis=-1)
    mass = mx.exp(ascending)
    above = mx.cumsum(mass, axis=-1, reverse=True, inclusive=False)
    dropped = (above >= top_p * (above[..., :1] + mass[..., :1])).sum(axis=-1, keepdims=True)
    threshold = mx.take_along_axis(ascending, dropped, axis=-1)
    return mx.where(logits < threshold, MINUS_INFINITY, logits)


def keep_top_k(logits: Any, top_k: Sequence[int]) -> Any:
    """Mask all but each row's top_k best tokens (and what ties with the last of them)."""
    most = min(max(top_k), logits.shape[-1])
    best = mx.sort(mx.topk(logits, most, axis=-1), axis=-1)
    last = mx.array([[most - min(k, most)] for k in top_k])
    return mx.where(logits < mx.take_along_axis(best, last, axis=-1), MINUS_INFINITY, logits)


def _column(values: list[float]) -> Any:
    return mx.array(values, dtype=mx.float32)[:, None]


def _counter(seed: int, position: int) -> int:
    """The 64-bit key of an output position: the seed scattered (splitmix64), then a step per position."""
    mixed = (seed + _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) + position * _GOLDEN) & _MASK
