"""A language model behind the engine's verbs."""

import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import mlx.core as mx

from inferd_server.core.errors import FieldViolation, InferdError, invalid_parameter
from inferd_server.core.generation import DecodeRequest, Sampling, Token
from inferd_server.core.model import Clock, EngineSettings, LoadAbandoned, Loading

from . import caches as cache
from .batch import DecodeBatch
from .device import release_unused
from .engine import Engine, StepResult
from .loading import MODEL_ERRORS, LoadedModel, Read, explain, load_checked, read_language_model
from .memory import Footprint, footprint
from .pacing import Pacing
from .prefill import Prefill
from .prefix_cache import PrefixCache
from .row import Row
from .speculative import Drafting, check_draft
from .trial import probe, try_batching

log = logging.getLogger("inferd.engine")

# Each load and unload ends in a full collection, which stops every thread, the event loop's too. Without the 100,000
# objects that the imports left, it takes 1 ms in place of 65. Here, where no model can have been opened yet.
gc.collect()
gc.freeze()

_WARM_UP = DecodeRequest(prompt_ids=(0,), sampling=Sampling(temperature=0.0), max_tokens=1)


def open_language_engine(settings: EngineSettings, loading: Loading, *, clock: Clock = time.monotonic) -> Engine:
    """Load a model, find out how it may be batched, and decode one token. On the thread that will own it; blocking.

    Raises:
        InferdError: why the load failed; nothing of it is left in memory.
        LoadAbandoned: likewise.
    """
    return open_engine(settings, loading, read_language_model, clock=clock)


def open_engine(
    settings: EngineSettings, loading: Loading, read: Read, make: "Make | None" = None, clock: Clock = time.monotonic
) -> Engine:
    """The same for a model that is read in another way.

    Args:
        make: makes the engine of what was loaded, or refuses it by raising; None: as it is.

    Raises:
        InferdError: why the load failed; nothing of it is left in memory.
        LoadAbandoned: likewise.
    """
    loaded = load_checked(settings, loading, read)
    failure: Exception
    try:
        engine = (make or LanguageEngine)(settings, loaded, clock)
        engine.warm_up()
        if not loading.abandoned:
            return engine
        failure = LoadAbandoned()
    except InferdError as error:
        failure = InferdError(error.reason, error.message, facts=error.facts)
    except MODEL_ERRORS as error:
        failure = explain(settings, error)
    engine = loaded = None  # type: ignore[assignment]  # the frame lives on in the exception's traceback
    release_unused()
    raise failure


class LanguageEngine:
    """The engine of a model whose input and output are tokens."""

    def __init__(self, settings: EngineSettings, loaded: LoadedModel, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._model: Any = loaded.model
        self._sight = loaded.sight
        self._weights_nbytes = loaded.weights_nbytes
        if settings.kv_bits:
            cache.quantize(self._model, settings.kv_bits, settings.kv_group_size)
        self._drafting: Drafting | None = None
        if loaded.draft is not None:
            check_draft(self._model, loaded.draft)
            self._drafting = Drafting(loaded.draft, settings.prefill_step_size)
        probed = probe(self._model)
        self._width = probed.width
        self._can_cut = probed.can_cut
        self._prefix_cache_nbytes = settings.prefix_cache_nbytes
        self._footprint = footprint(
            loaded.config,
            probed.cache_need if loaded.draft is None else probed.cache_need.with_draft(probe(loaded.draft).cache_need),
            step_tokens=settings.prefill_step_size,
            width=probed.width,
            itemsize=probed.itemsize,
        )
        self._vocabulary_size = min(self._width, _vocabulary_size(loaded.config) or self._width)
        self._batching = try_batching(self._model, self._vocabulary_size)
        if not self._batching.decode:
            log.warning("model %s decodes one request at a time: its cache can't be batched", settings.name)
        self._uids = count()
        self._is_broken = False
        self._is_opening = True  # nobody decodes since there was nothing to do
        self._start_empty()

    @property
    def weights_nbytes(self) -> int:
        """Parameter bytes."""
        return self._weights_nbytes

    @property
    def cache_nbytes(self) -> int:
        """KV and prefix caches held now, bytes."""
        drafting = self._drafting.cache_nbytes if self._drafting else 0
        return self._batch.cache_nbytes + self._prefill.cache_nbytes + self._prefixes.nbytes + drafting

    @property
    def footprint(self) -> Footprint:
        """What its work takes beside the weights."""
        return self._footprint

    @property
    def max_rows(self) -> int:
        """Most sequences that may run together; more may be inserted, and wait."""
        return self._settings.max_batch_size if self._batching.decode else 1

    @property
    def is_broken(self) -> bool:
        """Whether nothing more can be run."""
        return self._is_broken

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._batch.has_work or len(self._prefill) > 0

    def insert(self, request: DecodeRequest) -> int:
        """Take a sequence; its prefill starts at the next step.

        Raises:
            InferdError: INVALID_PARAMETER for ids outside the vocabulary (they would read foreign memory) and for
                sampling settings that are not finite.
        """
        self._check(request)
        row = Row(next(self._uids), request)
        if not self.has_work:
            self._pacing.resume()
            self._is_opening = True
        self._rows[row.uid] = row
        self._prefill.insert(row)
        return row.uid

    def step(self) -> StepResult:
        """Bring one decode step's tokens, or launch a bounded piece of prefill and the next decode step behind it.

        Raises:
            Exception: whatever MLX raised; every sequence is lost, and the engine begins anew unless `is_broken`.
        """
        is_intact = False
        try:
            result = self._advance()
            is_intact = True
            return result
        finally:
            if not is_intact:
                self._start_again()

    def remove(self, uid: int) -> None:
        """Drop a sequence at any stage; others are untouched. An unknown uid is no error."""
        row = self._rows.get(uid)
        if row is None:
            return
        self._forget(uid)
        if row.is_joined:
            self._batch.leave(row)
        else:
            self._prefill.remove(row)

    def bound_prefix_cache(self, nbytes: int) -> None:
        """Let the prefix cache hold at most so many bytes from now on; what is beyond is dropped at once."""
        self._prefix_cache_nbytes = nbytes
        self._prefixes.bound(nbytes)

    def close(self) -> None:
        """Drop the model and caches and clear the buffer cache; nothing may be called afterwards."""
        self._model = self._sight = None
        self._start_empty()
        self._drafting = None
        mx.synchronize()
        release_unused()

    def warm_up(self) -> None:
        """Decode one token."""
        self.insert(_WARM_UP)
        while self.has_work:
            self._advance()

    def _advance(self) -> StepResult:
        is_prefill_due = len(self._prefill) > 0 and len(self._batch) < self.max_rows
        if self._batch.is_under_way and (is_prefill_due or self._batch.brings_first_tokens):
            # A launch may block until much of it is computed (it does on the CPU): what is there is handed over first.
            return self._result(self._batch.read())
        most_tokens = self._pacing.piece_tokens(self._batch.has_work and not self._is_opening)
        if self._is_opening and self._batch.has_work and not (is_prefill_due and self._prefill.has_short(most_tokens)):
            return self._result(self._open())
        if is_prefill_due:
            return self._fill(most_tokens)
        return self._result(self._decode())

    def _fill(self, most_tokens: int) -> StepResult:
        piece = self._prefill.advance(self.max_rows - len(self._batch), most_tokens, self._pacing.look_seconds)
        self._pacing.note_prefill(piece.tokens)
        if piece.failed is not None:
            return self._result([Token(piece.failed.uid, 0, failure="the model does not take these pictures")])
        if piece.media_nbytes:
            self._pacing.note_pictures()
        is_first = self._is_opening and not self._batch.has_work
        if piece.caches is not None:
            self._store(piece.ready, piece.caches)
            self._batch.join(piece.ready, piece.caches)
        if is_first:
            # Requests that come together come within milliseconds, not at once. Whoever comes while the first of them
            # are prefilled gets one piece more before anybody decodes: no stream waits for its next token yet, and
            # small pieces between the decode steps of few rows would cost all of them more.
            self._batch.wait()
        else:
            self._is_opening = False
            self._batch.launch()
        return StepResult([], piece.tokens, piece.media_nbytes)

    def _open(self) -> list[Token]:
        """The first tokens since there was nothing to do."""
        self._is_opening = False
        self._batch.launch()
        return self._batch.read()

    def _decode(self) -> list[Token]:
        if self._drafting is not None:
            row = self._batch.alone()
            if row is not None and self._drafting.follow(row):
                return self._batch.speculate(row, self._drafting)
        return self._batch.step()

    def _store(self, rows: Sequence[Row], caches: cache.Caches) -> None:
        """Give the prefix cache the prompts that are filled: others that begin alike need not wait for their ends."""
        for number, row in enumerate(rows):
            place = number if len(rows) > 1 else None
            self._prefixes.put(row, cache.Source(caches, place, row.filled, row.filled))

    def _result(self, tokens: list[Token]) -> StepResult:
        if tokens:
            self._pacing.note_read()
        for token in tokens:
            if token.ended or token.failure:
                self._forget(token.uid)
        return StepResult(tokens)

    def _forget(self, uid: int) -> None:
        del self._rows[uid]
        if self._drafting is not None and not self._rows:
            self._drafting.forget()

    def _start_empty(self) -> None:
        self._rows: dict[int, Row] = {}
        self._is_opening = True
        self._prefixes = PrefixCache(self._model, self._prefix_cache_nbytes, can_cut=self._can_cut)
        self._prefill = Prefill(self._model, self._batching, self._prefixes, self._sight, self._clock)
        if self._sight is None:
            self._batch = DecodeBatch(self._model, self._width, self._prefixes)
        else:
            self._batch = DecodeBatch(self._model, self._width, self._prefixes, self._sight.decode_inputs)
        settings = self._settings
        if self._drafting is not None:
            self._drafting.forget()
        self._pacing = Pacing(settings.prefill_step_size, settings.target_gap_seconds, self._clock)

    def _start_again(self) -> None:
        """After a failed step every array of it is suspect: begin anew, and see whether the device still works."""
        self._start_empty()
        self._is_broken = True
        with suppress(*MODEL_ERRORS):
            self.warm_up()
            self._is_broken = False

    def _check(self, request: DecodeRequest) -> None:
        sampling = request.sampling
        ids = [*request.prompt_ids, *request.emitted_ids, *sampling.logit_bias]
        if not request.prompt_ids or min(ids) < 0 or max(ids) >= self._vocabulary_size:
            limit = self._vocabulary_size - 1
            raise invalid_parameter([FieldViolation("prompt", f"token ids must lie between 0 and {limit}")])
        numbers = [sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty]
        numbers += [sampling.presence_penalty, sampling.frequency_penalty, *sampling.logit_bias.values()]
        if request.pictures is not None and self._sight is None:
            raise invalid_parameter([FieldViolation("chat", "this model takes no pictures")])
        if request.max_tokens < 1 or not all(map(math.isfinite, numbers)):
            raise invalid_parameter([FieldViolation("sampling", "every number must be finite, and max_tokens >= 1")])


Make = Callable[[EngineSettings, LoadedModel, Clock], LanguageEngine]


def _vocabulary_size(config: dict[str, Any]) -> int:
    """As config.json says; 0 where it does not."""
    stated = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return stated if isinstance(stated, int) else 0
