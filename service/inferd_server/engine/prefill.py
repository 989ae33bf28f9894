"""Sequences on their way into the batch: a bounded piece of their prompts at each step.

The prompt with the least left to prefill goes first; but every fourth piece is the oldest's, so that none starves. A
prompt that is longer than a piece goes alone, chunk by chunk; those that fit into one go together where that is right
for the model. Pictures are looked at for as long as a piece may take, one prompt's at a time.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from inferd_server.core.model import Clock

from . import caches as cache
from .device import start
from .loading import MODEL_ERRORS
from .prefix_cache import PrefixCache
from .row import Row

if TYPE_CHECKING:
    from .sight import SightedModel  # it imports mlx_vlm

log = logging.getLogger("inferd.engine")

OLDEST_EVERY = 4
"""One piece in so many goes to the prompt that waited longest: it gets this share however many shorter ones come."""


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
    """What one step did: tokens prefilled, and rows ready to decode with a batch of their caches (one row: its own); or
    pictures looked at (`media_nbytes`: this piece's share), and the row whose pictures the model refused."""

    tokens: int = 0
    ready: Sequence[Row] = ()
    caches: cache.Caches | None = None
    media_nbytes: int = 0
    failed: Row | None = None


class Prefill:
    """Sequences that wait for prefill or are in it, in order of arrival."""

    def __init__(
        self,
        model: Any,
        batching: Batching,
        prefixes: PrefixCache,
        sight: "SightedModel | None" = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._model = model
        self._sight = sight
        self._batching = batching
        self._prefixes = prefixes
        self._clock = clock
        self._waiting: deque[Row] = deque()
        self._pieces_until_oldest = OLDEST_EVERY

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def cache_nbytes(self) -> int:
        """Bytes of the caches of prompts under way."""
        return sum(cache.nbytes(row.caches) for row in self._waiting if row.caches)

    def has_short(self, most_tokens: int) -> bool:
        """Whether somebody waits whose whole prompt is but one piece of so many tokens."""
        return any(row.unfilled <= most_tokens and row.request.pictures is None for row in self._waiting)

    def insert(self, row: Row) -> None:
        """Take a sequence."""
        self._waiting.append(row)

    def remove(self, row: Row) -> None:
        """Drop a sequence and its cache."""
        self._waiting.remove(row)
        row.caches = row.seen = None

    def advance(self, room: int, most_tokens: int, look_seconds: float = 0.0) -> Piece:
        """Launch the next piece of prefill, with sequences waiting and `room` (at least 1) for their rows.

        Returns with the piece under way on the device, but never with more than one of a prompt: a removal takes effect
        within one piece.

        Args:
            most_tokens: size of the piece, padding included; at least 1.
            look_seconds: for how long pictures are looked at, and to the end of a layer.
        """
        first = self._first()
        if _is_unseen(first):
            return self._look(next(filter(_is_half_seen, self._waiting), first), look_seconds)
        self._begin(first)
        if first.filled or first.unfilled > most_tokens or first.seen is not None:
            return self._advance_one(first, most_tokens)
        rows = self._companions(first, room, most_tokens)
        # Those that the prefix cache has something for go alone, in their turn.
        return self._advance_together([row for row in rows if row is first or not self._begin(row)], most_tokens)

    def _first(self) -> Row:
        """Whose turn it is."""
        self._pieces_until_oldest -= 1
        if self._pieces_until_oldest:
            return min(self._waiting, key=lambda row: row.unfilled)
        self._pieces_until_oldest = OLDEST_EVERY
        return self._waiting[0]

    def _companions(self, first: Row, room: int, most_tokens: int) -> list[Row]:
        """The rows of one piece: `first` and, in order of arrival, whole prompts that fit into it too."""
        rows, longest = [first], first.unfilled
        most = room if self._batching.prefill else 1
        for row in self._waiting:
            if len(rows) == most:
                break
            if row is first or row.filled or row.request.pictures is not None:
                continue
            padded = max(longest, row.unfilled)
            if (len(rows) + 1) * padded <= most_tokens:
                rows.append(row)
                longest = padded
        return rows

    def _begin(self, row: Row) -> bool:
        """Let a row start with what the prefix cache has of its context; whether there is anything."""
        found = self._prefixes.find(row) if row.caches is None else None
        if found is None:
            return False
        row.caches, row.filled, row.cached_tokens = found.caches, found.tokens, found.tokens
        return True

    def _advance_one(self, row: Row, most_tokens: int) -> Piece:
        """One chunk of one prompt, on its own caches."""
        if row.caches is None:
            row.caches = cache.fresh(self._model)
        else:
            mx.eval(cache.states(row.caches))
        count = self._count(row, most_tokens)
        if count:
            self._fill(row, row.caches, row.context[row.filled : row.filled + count])
            start(cache.states(row.caches))
            row.filled += count
        if row.unfilled:
            return Piece(count)
        caches, row.caches = row.caches, None
        self._waiting.remove(row)
        return Piece(count, [row], caches)

    def _look(self, row: Row, seconds: float) -> Piece:
        """Look at a row's pictures for a while."""
        pictures = row.request.pictures
        assert self._sight is not None, "insert refused it"
        assert pictures is not None
        try:
            if row.seen is None:
                row.seen = self._sight.see(row.request.prompt_ids, pictures)
                row.rope_delta, row.may_be_cut = row.seen.rope_delta, row.seen.may_be_cut
            share = row.seen.compute(seconds, self._clock)
        except MODEL_ERRORS as error:
            log.warning("a prompt's pictures were refused by the model: %s: %s", type(error).__name__, error)
            self.remove(row)
            return Piece(failed=row)
        return Piece(media_nbytes=math.ceil(share * pictures.work_nbytes))

    def _count(self, row: Row, most_tokens: int) -> int:
        """How many tokens of a row the next chunk has."""
        left = len(row.request.prompt_ids) - row.filled
        if row.seen is None or left <= 0:
            return min(most_tokens, row.unfilled)
        # What follows the prompt (an interrupted run's output) goes without its pictures, so in another chunk.
        return min(most_tokens if row.may_be_cut else left, row.unfilled, left)

    def _fill(self, row: Row, caches: cache.Caches, ids: Sequence[int]) -> None:
        if self._sight is None or row.seen is None:
            cache.fill(self._model, caches, [list(ids)])
        else:
            self._sight.fill(row, caches, ids)

    def _advance_together(self, rows: Sequence[Row], most_tokens: int) -> Piece:
        """Whole prompts, padded to the longest."""
        if len(rows) == 1:
            return self._advance_one(rows[0], most_tokens)
        caches = cache.merge([cache.fresh(self._model) for _ in rows])
        count = sum(row.unfilled for row in rows)
        if count:
            cache.fill(self._model, caches, [list(row.context[:-1]) for row in rows])
            start(cache.states(caches))
        for row in rows:
            row.filled += row.unfilled
            self._waiting.remove(row)
        return Piece(count, rows, caches)


def _is_unseen(row: Row) -> bool:
    """Whether pictures of it are still to be looked at."""
    return row.request.pictures is not None and (row.seen is None or _is_half_seen(row))


def _is_half_seen(row: Row) -> bool:
    return row.seen is not None and bool(row.seen.steps)
