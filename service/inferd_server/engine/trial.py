"""Whether sequences of a model may be batched, found by trying: some pass every formal test and are wrong.

Two short prompts of different lengths are run alone and in batches, and the logits compared.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from . import caches as cache
from .loading import MODEL_ERRORS
from .memory import CacheNeed
from .prefill import Batching

_LENGTHS = (5, 2)
_MAX_RELATIVE_DIFFERENCE = 0.05
"""Of the logits' spread. Rounding in bfloat16 stays far below it; a wrong state lies far above (mamba: 1.5)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one token shows: the width of the logits, bytes of one activation, what a sequence's caches take, and
    whether they can be cut at any token."""

    width: int
    itemsize: int
    cache_need: CacheNeed
    can_cut: bool


def probe(model: Any) -> Probe:
    """Run one token."""
    caches = cache.fresh(model)
    logits = model(mx.array([[0]]), cache=caches)
    mx.eval(logits, cache.states(caches))
    return Probe(int(logits.shape[-1]), int(logits.dtype.size), cache.need(caches), cache.can_cut(caches))


def try_batching(model: Any, vocabulary_size: int) -> Batching:
    """Run the trial: six forward passes of a few tokens.

    Raises:
        Exception: what the model raises for a single sequence.
    """
    long, short = _prompts(vocabulary_size)
    filled = [_filled_alone(model, prompt) for prompt in (long, short)]
    alone = [
        _last_logits(model, copy.deepcopy(each), [prompt]) for each, prompt in zip(filled, (long, short), strict=True)
    ]
    if not cache.can_merge(filled[0]):
        return Batching(decode=False, prefill=False)

    def filled_together() -> cache.Caches:
        """Both prompts in one prefill, and the short one once more, joining them."""
        batch = cache.merge([cache.fresh(model), cache.fresh(model)])
        cache.fill(model, batch, [long[:-1], short[:-1]])
        cache.extend(batch, cache.merge([filled[1]]))
        return batch

    if _agrees(model, filled_together, [long, short, short], mx.concatenate([*alone, alone[1]])):
        return Batching(decode=True, prefill=True)
    decode = _agrees(model, lambda: cache.merge(filled), [long, short], mx.concatenate(alone))
    return Batching(decode=decode, prefill=False)


def _prompts(vocabulary_size: int) -> list[list[int]]:
    ids = [(1 + i * 2654435761) % vocabulary_size for i in range(sum(_LENGTHS))]
    return [ids[: _LENGTHS[0]], ids[_LENGTHS[0] :]]


def _filled_alone(model: Any, prompt: list[int]) -> cache.Caches:
    caches = cache.fresh(model)
    cache.fill(model, caches, [prompt[:-1]])
    mx.eval(cache.states(caches))
    return caches


def _last_logits(model: Any, caches: cache.Caches, prompts: Sequence[list[int]]) -> mx.array:
    logits: mx.array = model(mx.array([[prompt[-1]] for prompt in prompts]), cache=caches)[:, -1].astype(mx.float32)
    mx.eval(logits)
    return logits


def _agrees(model: Any, fill: Callable[[], cache.Caches], prompts: Sequence[list[int]], alone: mx.array) -> bool:
    """Whether a batch filled in this way runs, and gives the logits of its sequences alone."""
    with suppress(*MODEL_ERRORS):
        return is_close(_last_logits(model, fill(), prompts), alone)
    return False


def is_close(logits: mx.array, reference: mx.array) -> bool:
    """Whether logits [rows, vocabulary] differ by no more than rounding."""
    spread = reference - reference.mean(axis=-1, keepdims=True)
    difference = mx.sqrt(mx.square(logits - reference).sum(axis=-1) / mx.square(spread).sum(axis=-1))
    return bool((difference <= _MAX_RELATIVE_DIFFERENCE).all())
