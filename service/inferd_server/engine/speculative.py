"""Speculative decoding: a small model drafts tokens, which the large one then judges in a single call.

Every token handed out is the large model's own greedy choice; drafts only decide how many it makes in one call.
"""

import math
from typing import Any

import mlx.core as mx

from . import caches as cache
from .device import start
from .row import Row
from .sampling import is_greedy
from .shaping import is_shaped

MOST_DRAFTED = 3
"""Tokens drafted for one call."""


def may_speculate(row: Row) -> bool:
    """Whether a row's tokens are plain greedy choices, with nothing else to tell of them."""
    request = row.request
    is_plain = is_greedy(request.sampling) and not is_shaped(request.sampling)
    return is_plain and request.grammar is None and request.top_logprobs is None


def check_draft(model: Any, draft: Any) -> None:
    """Check that a model can be drafted for by another one.

    Raises:
        ValueError: it can't.
    """
    for role, each in (("this model", model), ("the draft model", draft)):
        caches = cache.fresh(each)
        each(mx.array([[0]]), cache=caches)
        if not cache.are_plain(caches):
            raise ValueError(f"draft_model is not supported: {role} has caches that are no plain KV caches")
    widths = [each(mx.array([[0]])).shape[-1] for each in (model, draft)]
    if widths[0] != widths[1]:
        raise ValueError(f"draft_model is not supported: its vocabulary has {widths[1]} tokens, not {widths[0]}")


class Drafting:
    """The draft model, and its caches for the one sequence that it follows.

    Args:
        step_tokens: most tokens of one call.
    """

    def __init__(self, model: Any, step_tokens: int) -> None:
        self._model = model
        self._step_tokens = max(2, step_tokens)  # the row gains one with each call: it is to be caught up with
        self._uid = -1
        self._caches: cache.Caches = []
        self._filled = 0

    @property
    def cache_nbytes(self) -> int:
        """Bytes of its caches."""
        return cache.nbytes(self._caches)

    def forget(self) -> None:
        """Drop the caches."""
        self._uid, self._caches, self._filled = -1, [], 0

    def follow(self, row: Row) -> bool:
        """Whether it has (nearly) caught up with a row; launches a piece of what it lags behind where it has not."""
        if row.uid != self._uid:
            self._uid, self._caches, self._filled = row.uid, cache.fresh(self._model), 0
        piece = row.history[self._filled : self._filled + self._step_tokens]
        if self._filled + len(piece) == len(row.history):
            return True
        cache.fill(self._model, self._caches, [piece])
        start(cache.states(self._caches))
        self._filled += len(piece)
        return False

    def draft(self, row: Row, count: int) -> Any:
        """The next `count` (at least 1) tokens, as the draft model thinks; an array, lazy."""
        inputs = mx.array([row.history[self._filled :]], dtype=mx.uint32)
        self._filled = len(row.history) + count - 1
        drafts = []
        for _ in range(count):
            inputs = mx.argmax(self._model(inputs, cache=self._caches)[:, -1:], axis=-1)
            drafts.append(inputs)
        return mx.concatenate(drafts, axis=1)

    def rewind(self, length: int) -> None:
        """Forget what lies behind the first `length` tokens."""
        if self._filled > length:
            cache.rewind(self._caches, self._filled - length)
            self._filled = length


def judge(model: Any, caches: cache.Caches, drafting: Drafting, row: Row, most: int) -> tuple[list[int], list[float]]:
    """One round for a row whose caches hold its history up to the last token: the model's next tokens (1 to `most`)
    and the peaks of their logits. Afterwards the caches hold everything up to the last of them again."""
    count = min(MOST_DRAFTED, most - 1)
    last = mx.array([row.history[-1:]], dtype=mx.uint32)
    drafts = drafting.draft(row, count) if count else last[:, :0]
    logits = model(mx.concatenate([last, drafts], axis=1), cache=caches)[0]
    results: list[Any] = [mx.argmax(logits, axis=-1), mx.max(logits, axis=-1), drafts[0]]
    mx.eval(results)
    ids, peaks, drafted = (result.tolist() for result in results)
    taken = _taken(ids, peaks, drafted, row)
    cache.rewind(caches, len(ids) - taken)
    drafting.rewind(len(row.history) + taken - 1)
    return ids[:taken], peaks[:taken]


def _taken(ids: list[int], peaks: list[float], drafts: list[int], row: Row) -> int:
    """How many of the model's choices count: up to the first that was not drafted, or that is the row's last."""
    for number, (token, peak) in enumerate(zip(ids, peaks, strict=True)):
        is_last = token in row.request.end_ids or not math.isfinite(peak)
        if is_last or number == len(drafts) or token != drafts[number]:
            return number + 1
    raise AssertionError("there is one more choice than drafts")
