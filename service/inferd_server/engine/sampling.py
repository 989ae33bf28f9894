"""From logits to tokens, for all rows of a batch at once.

Rows with filters share one call, and so do those without, their parameters as columns; greedy rows cost one argmax in
all. Filters look at the distribution before temperature, in the order top_p, min_p, top_k, as in mlx_lm. A drawn row
uses key (seed, position) alone, so neither its neighbours nor an interruption change what it draws: the key says how
far into the kept mass, in the order of token ids, the drawn token lies.
"""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from inferd_server.core.generation import Sampling

from .filtering import Draw, draw_place, mass

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MINUS_INFINITY = -float("inf")
MIN_TEMPERATURE = 1e-5
"""Below this, float32 could not divide by it; the best token has all the mass long before."""
MAX_TOP_K = 1 << 30
"""No vocabulary is larger."""

_uniform = mx.vmap(lambda key: mx.random.uniform(shape=(1,), key=key))


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
        drawn.sort(key=lambda number: _is_filtered(rows[number][0]))
        first_filtered = sum(not _is_filtered(rows[number][0]) for number in drawn)
        groups = [numbers for numbers in (drawn[:first_filtered], drawn[first_filtered:]) if numbers]
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


def _is_filtered(sampling: Sampling) -> bool:
    return sampling.top_p < 1 or sampling.min_p > 0 or sampling.top_k > 0


def _pick(count: int, replaced: Sequence[int]) -> Any:
    """Index into [all rows, then the replaced ones]: each row's own, or its replacement."""
    pick = list(range(count))
    for place, number in enumerate(replaced):
        pick[number] = count + place
    return mx.array(pick)


class _Group:
    """Drawn rows, all of them filtered or none."""

    def __init__(self, numbers: list[int], rows: Sequence[tuple[Sampling, int]]) -> None:
        samplings = [sampling for sampling, _ in rows]
        self.numbers = mx.array(numbers)
        self._is_filtered = _is_filtered(samplings[0])
        self._has_top_p = any(s.top_p < 1 for s in samplings)
        self._temperature = _column([max(s.temperature, MIN_TEMPERATURE) for s in samplings])
        self._top_p = _column([s.top_p for s in samplings])
        self._least = _column([math.log(s.min_p) if s.min_p > 0 else MINUS_INFINITY for s in samplings])
        self._top_k = mx.array([[min(s.top_k, MAX_TOP_K)] for s in samplings], dtype=mx.int32)
        self._counters = np.array([_counter(s.seed, position) for s, position in rows], dtype=np.uint64)

    def draw(self, logits: Any) -> Any:
        logits = logits.astype(mx.float32)
        logits = logits - mx.max(logits, axis=-1, keepdims=True)
        share = 1 - _uniform(self._next_keys())
        if not self._is_filtered:
            return draw_place(mass(logits / self._temperature), share)
        # Without top_p nobody asks for the whole mass, and to sum it up takes longer than all the rest.
        total = mass(logits).sum(axis=-1, keepdims=True) if self._has_top_p else mx.ones_like(share)
        return Draw(logits, total, share, self._temperature, self._top_p, self._least, self._top_k).tokens()

    def _next_keys(self) -> Any:
        keys = mx.array(self._counters.view(np.uint32).reshape(-1, 2))
        self._counters += np.uint64(_GOLDEN)
        return keys


def _column(values: list[float]) -> Any:
    return mx.array(values, dtype=mx.float32)[:, None]


def _counter(seed: int, position: int) -> int:
    """The 64-bit key of an output position: the seed scattered (splitmix64), then a step per position."""
    mixed = (seed + _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) + position * _GOLDEN) & _MASK
