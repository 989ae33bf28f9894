"""Sequences on their way into the batch: a bounded piece of their prompts at each step.

A prompt longer than a step goes alone, chunk by chunk, so that running rows wait for one chunk at most. Prompts that
fit into a step go together where that is right for the model. Where both wait they take turns, so neither starves.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from . import caches as cache
from .device import start
from .prefix_cache import PrefixCache
from .row import Row


@dataclass(frozen=True, slots=True)
class Batching:
    """What sequences of a model may share, as found when it was loaded.

    Attributes:
        decode: sequences may decode together.
        prefill: prompts of different lengths may be prefilled together.
    """

    decode: bool
    prefill: bool


@dataclass(slots=True)
class Piece:
    """What one step did: tokens prefilled, and rows ready to decode with a batch of their caches (one row: its own)."""

    tokens: int = 0
    ready: Sequence[Row] = ()
    caches: cache.Caches | None = None


class Prefill:
    """Sequences that wait for prefill or are in it, in order of arrival."""

    def __init__(self, model: Any, step_size: int, batching: Batching, prefixes: PrefixCache) -> None:
        self._model = model
        self._prefixes = prefixes
        self._step_size = step_size
        self._batching = batching
        self._waiting: deque[Row] = deque()
        self._was_long = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def cache_nbytes(self) -> int:
        """Bytes of the caches of prompts under way."""
        return sum(cache.nbytes(row.caches) for row in self._waiting if row.caches)

    def insert(self, row: Row) -> None:
        """Take a sequence."""
        self._waiting.append(row)

    def remove(self, row: Row) -> None:
        """Drop a sequence and its cache."""
        self._waiting.remove(row)
        row.caches = None

    def advance(self, room: int) -> Piece:
        """Launch the next piece of prefill, with sequences waiting and `room` (at least 1) for their rows.

        Returns with the piece under way on the device, but never with more than one of a prompt: a removal takes effect
        within one piece.
        """
        # Those that the prefix cache has something for go alone.
        short = [row for row in self._short_rows(room) if not self._begin(row)]
        long = next((row for row in self._waiting if row.filled or row.unfilled > self._step_size), None)
        if long is not None:
            self._begin(long)
        self._was_long = long is not None and not (short and self._was_long)
        return self._advance_one(long) if long is not None and self._was_long else self._advance_together(short)

    def _short_rows(self, room: int) -> list[Row]:
        """The first that fit into one step together, padding included."""
        rows: list[Row] = []
        longest = 0
        most = room if self._batching.prefill else 1
        for row in self._waiting:
            if row.filled or row.unfilled > self._step_size:
                continue
            longest = max(longest, row.unfilled)
            if len(rows) == most or (rows and (len(rows) + 1) * longest > self._step_size):
                break
            rows.append(row)
        return rows

    def _begin(self, row: Row) -> bool:
        """Let a row start with what the prefix cache has of its context; whether there is anything."""
        found = self._prefixes.find(row) if row.caches is None else None
        if found is None:
            return False
        row.caches, row.filled, row.cached_tokens = found.caches, found.tokens, found.tokens
        return True

    def _advance_one(self, row: Row) -> Piece:
        """One chunk of one prompt, on its own caches."""
        if row.caches is None:
            row.caches = cache.fresh(self._model)
        else:
            mx.eval(cache.states(row.caches))
        count = min(self._step_size, row.unfilled)
        if count:
            cache.fill(self._model, row.caches, [list(row.context[row.filled : row.filled + count])])
            start(cache.states(row.caches))
            row.filled += count
        if row.unfilled:
            return Piece(count)
        caches, row.caches = row.caches, None
        self._waiting.remove(row)
        return Piece(count, [row], caches)

    def _advance_together(self, rows: Sequence[Row]) -> Piece:
        """Whole prompts, padded to the longest."""
        if len(rows) == 1:
            return self._advance_one(rows[0])
        caches = cache.merge([cache.fresh(self._model) for _ in rows])
        count = sum(row.unfilled for row in rows)
        if count:
            cache.fill(self._model, caches, [list(row.context[:-1]) for row in rows])
            start(cache.states(caches))
        for row in rows:
            row.filled += row.unfilled
            self._waiting.remove(row)
        return Piece(count, rows, caches)
