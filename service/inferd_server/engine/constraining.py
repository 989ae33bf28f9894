"""Masks for the rows of a batch whose output follows a grammar.

A mask depends on the token before it, so it can't be part of a launch that runs ahead. What can is the model call: the
batch launches that, reads the tokens of the step before, and only then asks for masks (while the device computes).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from inferd_server.core.constraints import ConstraintBroken

from .row import Row
from .sampling import MINUS_INFINITY


class Constraining:
    """Masks the logits of the constrained rows of a fixed batch; the others' stay as they are.

    Args:
        rows: the rows of the batch, at least one of them constrained.
        vocabulary_size: width of the logits; a tokenizer may know fewer ids, or more.
    """

    def __init__(self, rows: Sequence[Row], vocabulary_size: int) -> None:
        constrained = [(number, row) for number, row in enumerate(rows) if row.matcher is not None]
        self._rows = [row for _, row in constrained]
        # One line for each constrained row, and a last one, all allowed, for the others.
        self._allowed = np.ones((len(constrained) + 1, vocabulary_size), dtype=np.bool_)
        pick = [len(constrained)] * len(rows)
        for line, (number, _) in enumerate(constrained):
            pick[number] = line
        self._pick = mx.array(pick)

    def __call__(self, logits: Any) -> Any:
        """Logits [rows, vocabulary] with minus infinity for what may not come next; lazy. Every token read so far has
        to be in its row's matcher. A row that can't go on gets its `failure`."""
        for line, row in enumerate(self._rows):
            self._fill(self._allowed[line], row)
        return mx.where(mx.array(self._allowed)[self._pick], logits, MINUS_INFINITY)

    def _fill(self, line: Any, row: Row) -> None:
        if row.is_done or row.failure or row.matcher is None:
            line[:] = True  # what is drawn for it will not be read
            return
        try:
            bits = np.frombuffer(row.matcher.allowed(), dtype=np.uint8)
        except ConstraintBroken as broken:
            row.failure = str(broken)
            line[:] = True
            return
        known = np.unpackbits(bits, bitorder="little")[: len(line)]
        line[: len(known)] = known
        line[len(known) :] = False
        if not line.any():
            row.failure = "the constraint allows only tokens that the model does not have"
            line[:] = True
