"""Logit bias and penalties, for all rows of a batch that ask for them at once.

In mlx_lm's order: bias; repetition penalty (sign-aware); presence and frequency penalty. Repetition looks at the last
`repetition_window` tokens of prompt and output; presence and frequency count the output alone, all of it.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from inferd_server.core.generation import Sampling

from .row import Row

MAX_REPETITION_WINDOW = 8192
"""A larger window is cut to this: the window is kept for each row on the device."""

LARGEST = float(np.finfo(np.float32).max) / 4
"""Biases and changed logits are cut here, so that none is infinite."""
MIN_REPETITION_PENALTY = 1e-6


def is_shaped(sampling: Sampling) -> bool:
    """Whether a row's logits are changed at all."""
    return bool(sampling.logit_bias) or _repeats(sampling) or _counts_matter(sampling)


class Shaping:
    """Changes the logits of the rows of a fixed batch that ask for it; each call is the next output position.

    Args:
        rows: the rows of the batch.
        launch: number of the decode launch that the first call belongs to.
        vocabulary_size: width of the logits.
    """

    def __init__(self, rows: Sequence[Row], launch: int, vocabulary_size: int) -> None:
        numbers = [number for number, row in enumerate(rows) if is_shaped(row.request.sampling)]
        shaped = [rows[number] for number in numbers]
        samplings = [row.request.sampling for row in shaped]
        self._numbers = mx.array(numbers)
        self._places = mx.arange(len(numbers))
        pick = list(range(len(rows)))
        for place, number in enumerate(numbers):
            pick[number] = len(rows) + place
        self._pick = mx.array(pick)
        self._bias = _bias(samplings, vocabulary_size)
        self._window, self._is_recent = _windows(shaped, launch)
        self._repetition = _column([_penalty(s) for s in samplings])
        self._counts = _counts(shaped, launch, vocabulary_size)
        self._presence = _column([s.presence_penalty for s in samplings])
        self._frequency = _column([s.frequency_penalty for s in samplings])

    def __call__(self, logits: Any, inputs: Any) -> Any:
        """Logits [rows, vocabulary] in float32, changed; `inputs` [rows] are the newest tokens. Lazy."""
        logits = logits.astype(mx.float32)
        shaped, newest = logits[self._numbers], inputs[self._numbers].astype(mx.int32)
        if self._bias is not None:
            shaped = shaped + self._bias
        if self._window is not None:
            shaped = self._penalise_repetition(shaped, newest[:, None])
        if self._counts is not None:
            self._counts = self._counts.at[self._places, newest].add(1)
            shaped = shaped - self._frequency * self._counts - self._presence * (self._counts > 0)
        return mx.concatenate([logits, mx.clip(shaped, -LARGEST, LARGEST)])[self._pick]

    def _penalise_repetition(self, shaped: Any, newest: Any) -> Any:
        self._window = mx.concatenate([self._window[:, 1:], newest], axis=1)
        # The newest token stands in for what lies outside a row's window: putting it twice changes nothing.
        seen = mx.where(self._is_recent, self._window, newest)
        picked = mx.take_along_axis(shaped, seen, axis=1)
        penalised = mx.where(picked < 0, picked * self._repetition, picked / self._repetition)
        return mx.put_along_axis(shaped, seen, penalised, axis=1)


def _repeats(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1 and sampling.repetition_window > 0


def _penalty(sampling: Sampling) -> float:
    return max(sampling.repetition_penalty, MIN_REPETITION_PENALTY) if _repeats(sampling) else 1.0


def _counts_matter(sampling: Sampling) -> bool:
    return sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def _width(sampling: Sampling) -> int:
    return min(sampling.repetition_window, MAX_REPETITION_WINDOW) if _repeats(sampling) else 1


def _windows(rows: Sequence[Row], launch: int) -> tuple[Any, Any]:
    """The rows' newest tokens, oldest first, and which of them lie inside each row's own window."""
    widths = [_width(row.request.sampling) for row in rows]
    if not any(_repeats(row.request.sampling) for row in rows):
        return None, None
    widest = max(widths)
    window = np.zeros((len(rows), widest), dtype=np.int32)
    for place, row in enumerate(rows):
        known = row.history_before(launch)[-widest:]
        # A history shorter than the window is filled up with its oldest token: it leaves the window after its copies.
        window[place] = [*[known[0] if known else row.context[0]] * (widest - len(known)), *known]
    is_recent = np.arange(widest)[None] >= widest - np.array(widths)[:, None]
    return mx.array(window), mx.array(is_recent)


def _counts(rows: Sequence[Row], launch: int, vocabulary_size: int) -> Any:
    """How often each row put out each token before this launch's input, [rows, vocabulary]."""
    if not any(_counts_matter(row.request.sampling) for row in rows):
        return None
    counts = np.zeros((len(rows), vocabulary_size), dtype=np.float32)
    for place, row in enumerate(rows):
        if row.has_prompt_input(launch):
            counts[place, row.context[-1]] = -1  # inputs are counted as they come, but this one is no output
        else:
            counts[place] = np.bincount(row.outputs_before(launch), minlength=vocabulary_size)
    return mx.array(counts)


def _bias(samplings: Sequence[Sampling], vocabulary_size: int) -> Any:
    if not any(sampling.logit_bias for sampling in samplings):
        return None
    bias = np.zeros((len(samplings), vocabulary_size), dtype=np.float32)
    for place, sampling in enumerate(samplings):
        for token_id, value in sampling.logit_bias.items():
            bias[place, token_id] = min(max(value, -LARGEST), LARGEST)
    return mx.array(bias)


def _column(values: list[float]) -> Any:
    return mx.array(values, dtype=mx.float32)[:, None]
