"""The rows that decode together: one model call per step for all of them.

The device works one step ahead: a step launches the next call and then reads what the one before has brought, so the
time that Python takes for one step's tokens is hidden behind the next step's computing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from inferd_server.core.generation import Token, TokenLogprob

from . import caches as cache
from .constraining import Constraining
from .device import start
from .logprobs import Logprobs
from .prefix_cache import PrefixCache
from .row import Row
from .sampling import Sampler
from .shaping import Shaping, is_shaped
from .speculative import Drafting, judge, may_speculate


@dataclass(slots=True)
class _Launch:
    """A model call under way: its rows, and lazy arrays with one entry for each of them."""

    number: int
    rows: tuple[Row, ...]
    tokens: Any
    peaks: Any
    logprobs: Logprobs | None = None
    logprob_arrays: tuple[Any, ...] = ()


class DecodeBatch:
    """Rows in decode.

    Args:
        vocabulary_size: width of the logits.
        prefixes: where the caches of rows that leave are stored.
        row_inputs: what a model call takes beside ids and caches for some rows.
    """

    def __init__(
        self,
        model: Any,
        vocabulary_size: int,
        prefixes: PrefixCache,
        row_inputs: Callable[[Sequence[Row]], dict[str, Any]] = lambda rows: {},
    ) -> None:
        self._model = model
        self._find_row_inputs = row_inputs
        self._vocabulary_size = vocabulary_size
        self._prefixes = prefixes
        self._launches = 0
        self._next_last = 0
        self._drop()

    def _drop(self) -> None:
        self._rows: list[Row] = []
        self._caches: cache.Caches = []
        self._is_merged = False
        self._inputs: Any = None
        self._launched: _Launch | None = None
        self._forwards = self._launches  # model calls; one ahead while its tokens are not drawn yet
        self._constraining: Constraining | None = None
        self._has_left = False

    def __len__(self) -> int:
        """Rows that hold a place."""
        return len(self._rows)

    @property
    def has_work(self) -> bool:
        """Whether rows decode or a token is still to be read."""
        return bool(self._rows) or self._launched is not None

    @property
    def cache_nbytes(self) -> int:
        """Bytes of the rows' caches."""
        return cache.nbytes(self._caches)

    def join(self, rows: Sequence[Row], caches: cache.Caches) -> None:
        """Take rows whose caches are filled up to the last token of their context; they decode from the next step on.

        Args:
            caches: a batch of the rows' caches, or the one row's own.
        """
        self._settle()
        inputs = mx.array([row.context[-1] for row in rows], dtype=mx.uint32)
        for row in rows:
            row.join(self._launches)
        if self._rows:
            if not self._is_merged:
                self._caches, self._is_merged = cache.merge([self._caches]), True
            cache.extend(self._caches, cache.merge([caches]) if len(rows) == 1 else caches)
            self._inputs = mx.concatenate([self._inputs, inputs])
        else:
            # A row alone decodes on its own caches: faster than as a batch of one, and possible for every model.
            self._caches, self._is_merged, self._inputs = caches, len(rows) > 1, inputs
        self._rows.extend(rows)
        self._plan()

    def leave(self, row: Row) -> None:
        """Drop a row: its place is free at the next step, or at once if it was the last."""
        row.is_done = True
        self._has_left = True
        self._drop_if_over()

    @property
    def is_under_way(self) -> bool:
        """Whether a model call was launched and its tokens are still to be read."""
        return self._launched is not None

    @property
    def brings_first_tokens(self) -> bool:
        """Whether the model call under way computes the first token of some row."""
        launch = self._launched
        return launch is not None and any(row.first_launch == launch.number for row in launch.rows)

    def wait(self) -> None:
        """Wait until the rows' caches are filled."""
        mx.eval(cache.states(self._caches))

    def launch(self) -> None:
        """Launch a model call, with none under way."""
        self._launched = self._draw(self._forward())

    def read(self) -> list[Token]:
        """Wait for the model call under way and return its tokens."""
        arrived, self._launched = self._launched, None
        return self._read(arrived) if arrived else []

    def step(self) -> list[Token]:
        """Launch the next model call, then return the tokens of the one before.

        A constrained row's token can't be drawn before the one ahead of it was read: there the model runs ahead alone,
        and computes while masks are made.
        """
        arrived, self._launched = self._launched, None
        logits = self._forward()
        if self._constraining is None or arrived is None or logits is None:
            self._launched = self._draw(logits)
            return self._read(arrived) if arrived else []
        start(logits)
        tokens = self._read(arrived)
        self._launched = self._draw(logits)
        return tokens

    def alone(self) -> Row | None:
        """The row that may speculate: it is alone, and its tokens are plain greedy choices."""
        rows = [row for row in self._rows if not row.is_done]
        return rows[0] if len(rows) == 1 and may_speculate(rows[0]) else None

    def speculate(self, row: Row, drafting: Drafting) -> list[Token]:
        """The next tokens of the row that is `alone`, one or more, and with no model call under way afterwards."""
        if self._launched is not None:
            return self.read()
        self._settle()
        if self._is_merged:
            filled = len(row.history) - 1
            self._caches, self._is_merged = cache.Source(self._caches, 0, filled, filled).whole(), False
        most = row.last_launch - self._launches + 1
        ids, peaks = judge(self._model, self._caches, drafting, row, most)
        self._inputs = mx.array(ids[-1:], dtype=mx.uint32)
        first = self._launches
        self._launches += len(ids)
        self._forwards = self._launches
        tokens = []
        for number, (token, peak) in enumerate(zip(ids, peaks, strict=True)):
            tokens += self._tokens(_Launch(first + number, (row,), None, None), [token], [peak])
        return tokens

    def _everyone(self) -> Sequence[Row]:
        return [*self._rows, *(self._launched.rows if self._launched else ())]

    def _drop_if_over(self) -> None:
        if all(each.is_done for each in self._everyone()):
            self._store(range(len(self._rows)))
            self._drop()

    def _store(self, numbers: Iterable[int]) -> None:
        """Give the prefix cache what these rows' caches hold, before they go."""
        for number in numbers:
            row = self._rows[number]
            filled = len(row.context) - 1 + self._forwards - row.first_launch
            if not row.failure:
                place = number if self._is_merged else None
                self._prefixes.put(row, cache.Source(self._caches, place, filled, min(filled, len(row.history))))

    def _settle(self) -> None:
        """Let go of rows that ended, and of those whose last token is under way."""
        if not self._has_left and self._launches <= self._next_last:
            return
        kept = [i for i, row in enumerate(self._rows) if not row.is_done and row.last_launch >= self._launches]
        self._has_left = False
        if len(kept) == len(self._rows):
            return
        self._store(set(range(len(self._rows))) - set(kept))
        if kept:
            cache.keep_rows(self._caches, kept)
            self._inputs = self._inputs[mx.array(kept)]
        else:
            self._caches, self._inputs = [], None
        self._rows = [self._rows[i] for i in kept]
        self._plan()

    def _plan(self) -> None:
        """What holds until rows join or leave."""
        if not self._rows:
            return
        requests = [row.request for row in self._rows]
        positions = [row.position(self._launches) for row in self._rows]
        wanted = [request.top_logprobs for request in requests]
        self._next_last = min(row.last_launch for row in self._rows)
        self._row_inputs = self._find_row_inputs(self._rows)
        self._sampler = Sampler([(r.sampling, p) for r, p in zip(requests, positions, strict=True)])
        is_shaping = any(is_shaped(request.sampling) for request in requests)
        self._shaping = Shaping(self._rows, self._launches, self._vocabulary_size) if is_shaping else None
        is_constrained = any(row.matcher is not None for row in self._rows)
        self._constraining = Constraining(self._rows, self._vocabulary_size) if is_constrained else None
        self._logprobs = None if wanted == [None] * len(wanted) else Logprobs(wanted, self._vocabulary_size)

    def _forward(self) -> Any:
        """Call the model for the rows that go on: logits [rows, vocabulary], lazy; None without rows."""
        self._settle()
        if not self._rows:
            return None
        self._forwards += 1
        return self._model(self._inputs[:, None], cache=self._caches, **self._row_inputs)[:, -1]

    def _draw(self, logits: Any) -> _Launch | None:
        """Launch what remains of a model call: everything from its logits to its tokens."""
        if not self._rows:
            return None
        shaped = self._shaping(logits, self._inputs) if self._shaping else logits
        tokens = self._sampler(self._constraining(shaped) if self._constraining else shaped)
        launch = _Launch(self._launches, tuple(self._rows), tokens, mx.max(logits, axis=-1))
        if self._logprobs:
            launch.logprobs, launch.logprob_arrays = self._logprobs, self._logprobs.compute(logits, tokens)
        start(tokens, launch.peaks, launch.logprob_arrays)
        self._inputs = tokens
        self._launches += 1
        return launch

    def _read(self, launch: _Launch) -> list[Token]:
        return self._tokens(launch, launch.tokens.tolist(), launch.peaks.tolist())

    def _tokens(self, launch: _Launch, ids: list[int], peaks: list[float]) -> list[Token]:
        """What a launch brought, told to its rows."""
        are_sound = math.isfinite(sum(peaks))
        logprobs: dict[int, TokenLogprob] = {}
        if launch.logprobs:
            logprobs = launch.logprobs.read(launch.logprob_arrays, ids)
        tokens = []
        for number, row in enumerate(launch.rows):
            if row.is_done:
                continue
            token = Token(row.uid, ids[number], logprobs.get(number))
            if not are_sound and not math.isfinite(peaks[number]):
                token.failure = "the model's logits are not finite"
            elif row.failure:
                token.failure = row.failure
            elif ids[number] in row.request.end_ids:
                token.ended = "end_id"
            elif launch.number == row.last_launch:
                token.ended = "length"
            if launch.number == row.first_launch:
                token.cached_tokens = row.cached_tokens
            if token.ended or token.failure:
                row.end(token)
                self._has_left = True
            else:
                row.take(token.token_id)
            tokens.append(token)
        if self._has_left:
            self._drop_if_over()
        return tokens
