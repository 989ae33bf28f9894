"""Whether sequences of a model may be batched, found by trying: some pass every formal test and are wrong.

Three short prompts of different lengths are run alone and together, and the logits compared.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import mlx.core as mx

from . import caches as cache
from .loading import MODEL_ERRORS
from .prefill import Batching

_LENGTHS = (5, 2, 3)
_MAX_RELATIVE_DIFFERENCE = 0.05
"""Of the logits' spread. Rounding in bfloat16 stays below it; a wrong mask or state is far above."""


def try_batching(model: Any, vocabulary_size: int) -> Batching:
    """Run the trial: a few forward passes of a few tokens.

    Raises:
        Exception: what the model raises for a single sequence.
    """
    prompts = _prompts(vocabulary_size)
    alone = mx.concatenate([_last_logits(model, _filled_alone(model, [prompt]), [prompt]) for prompt in prompts])
    if not cache.can_merge(cache.fresh(model)):
        return Batching(decode=False, prefill=False)
    if _agrees(model, _filled_in_part_together, prompts, alone):
        return Batching(decode=True, prefill=True)
    return Batching(decode=_agrees(model, _filled_alone, prompts, alone), prefill=False)


def logit_width(model: Any) -> int:
    """Width of the model's logits."""
    return int(model(mx.array([[0]]), cache=cache.fresh(model)).shape[-1])


def _prompts(vocabulary_size: int) -> list[list[int]]:
    ids = [(1 + i * 2654435761) % vocabulary_size for i in range(sum(_LENGTHS))]
    starts = [sum(_LENGTHS[:i]) for i in range(len(_LENGTHS))]
    return [ids[start : start + length] for start, length in zip(starts, _LENGTHS, strict=True)]


def _filled_alone(model: Any, prompts: Sequence[list[int]]) -> cache.Caches:
    """A batch of caches, each filled by itself."""
    each = []
    for prompt in prompts:
        caches = cache.fresh(model)
        cache.fill(model, caches, [prompt[:-1]])
        mx.eval(cache.states(caches))
        each.append(caches)
    return each[0] if len(each) == 1 else cache.merge(each)


def _filled_in_part_together(model: Any, prompts: Sequence[list[int]]) -> cache.Caches:
    """A batch of caches: the first two prompts filled together, the third joining them."""
    batch = cache.merge([cache.fresh(model) for _ in prompts[:2]])
    cache.fill(model, batch, [prompt[:-1] for prompt in prompts[:2]])
    cache.extend(batch, cache.merge([_filled_alone(model, prompts[2:])]))
    return batch


def _last_logits(model: Any, caches: cache.Caches, prompts: Sequence[list[int]]) -> Any:
    logits = model(mx.array([[prompt[-1]] for prompt in prompts]), cache=caches)[:, -1].astype(mx.float32)
    mx.eval(logits)
    return logits


def _agrees(
    model: Any, fill: Callable[[Any, list[list[int]]], cache.Caches], prompts: list[list[int]], alone: Any
) -> bool:
    """Whether a batch filled in this way gives the logits of its sequences alone."""
    with suppress(*MODEL_ERRORS):
        return _is_close(_last_logits(model, fill(model, prompts), prompts), alone)
    return False


def _is_close(logits: Any, reference: Any) -> bool:
    spread = reference - reference.mean(axis=-1, keepdims=True)
    difference = mx.sqrt(mx.square(logits - reference).sum(axis=-1) / mx.square(spread).sum(axis=-1))
    return bool((difference <= _MAX_RELATIVE_DIFFERENCE).all())
