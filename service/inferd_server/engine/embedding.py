"""A model that turns texts into vectors, behind the engine's verbs; a reranker's have one number."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import mlx.core as mx
import numpy as np

from inferd_server.core.embedding import Encoded, EncodeRequest
from inferd_server.core.errors import FieldViolation, invalid_parameter
from inferd_server.core.model import EngineSettings, LoadAbandoned, Loading

from .device import release_unused
from .encoder_loading import LoadedEncoder, load_encoder
from .encoder_models import EncoderModel
from .engine import EngineOf, StepResultOf
from .loading import MODEL_ERRORS, explain
from .memory import EncoderFootprint, encoder_footprint
from .text_queue import QueuedText, TextQueue

log = logging.getLogger("inferd.engine")

Vectors = np.ndarray[Any, np.dtype[np.float32]]

_TRIAL_LENGTHS = (7, 3)
_MAX_DIFFERENCE = 0.05
"""Of a vector's length, between a text alone and in a batch. Rounding in bfloat16 stays far below it."""
_LEAST_LENGTH = 1e-9


def open_embedding_engine(settings: EngineSettings, loading: Loading) -> EngineOf[EncodeRequest, Encoded]:
    """Load a model, find out whether its texts may be batched, and warm it up. On the thread that will own it;
    blocking.

    Raises:
        InferdError: why the load failed; nothing of it is left in memory.
        LoadAbandoned: likewise.
    """
    loaded = load_encoder(settings, loading)
    failure: Exception
    try:
        engine = EmbeddingEngine(settings, loaded)
        engine.warm_up()
        if not loading.abandoned:
            return engine
        failure = LoadAbandoned()
    except MODEL_ERRORS as error:
        failure = explain(settings, error)
    engine = loaded = None  # type: ignore[assignment]  # the frame lives on in the exception's traceback
    release_unused()
    raise failure


@dataclass(slots=True)
class _Row:
    """A request under way; `left`: texts without a vector."""

    request: EncodeRequest
    left: int


class EmbeddingEngine:
    """One step encodes one batch: texts of similar length, of one request and then of the others.

    A batch has at most `prefill_step_size` tokens, padding included, or one text.
    """

    def __init__(self, settings: EngineSettings, loaded: LoadedEncoder) -> None:
        self._settings = settings
        self._model: EncoderModel | None = loaded.model
        self._max_tokens = loaded.max_tokens
        self._width = loaded.width
        self._weights_nbytes = loaded.weights_nbytes
        self._vocabulary_size = int(loaded.config.get("vocab_size") or 0)
        self._padding_id = int(loaded.config.get("pad_token_id") or 0)
        self._footprint = encoder_footprint(
            loaded.config,
            batch_tokens=settings.prefill_step_size,
            longest_text=loaded.max_tokens,
            itemsize=loaded.model.itemsize,
        )
        self._uids = count()
        self._is_broken = False
        self._start_empty()

    @property
    def weights_nbytes(self) -> int:
        """Parameter bytes."""
        return self._weights_nbytes

    @property
    def cache_nbytes(self) -> int:
        """None: nothing is kept between steps."""
        return 0

    @property
    def footprint(self) -> EncoderFootprint:
        """What its work takes beside the weights."""
        return self._footprint

    @property
    def max_rows(self) -> int:
        """Most requests under way together."""
        return self._settings.max_batch_size

    @property
    def is_broken(self) -> bool:
        """Whether nothing more can be run."""
        return self._is_broken

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._rows)

    def insert(self, request: EncodeRequest) -> int:
        """Take a request.

        Raises:
            InferdError: INVALID_PARAMETER for ids outside the vocabulary and texts longer than the model reads: both
                would read foreign memory.
        """
        self._check(request)
        uid = next(self._uids)
        self._rows[uid] = _Row(request, len(request.texts))
        self._queue.add(uid, request.texts)
        return uid

    def step(self) -> StepResultOf[Encoded]:
        """Encode one batch.

        Raises:
            Exception: whatever MLX raised; every request is lost, and the engine begins anew unless `is_broken`.
        """
        is_intact = False
        try:
            batch = self._queue.next_batch()
            seconds = [self._rows[text.uid].request.second_from for text in batch]
            vectors = self._encode([text.ids for text in batch], seconds)
            is_intact = True
        finally:
            if not is_intact:
                self._start_again()
        tokens = len(batch) * max(len(text.ids) for text in batch)
        return StepResultOf(list(self._hand_out(batch, vectors)), tokens)

    def remove(self, uid: int) -> None:
        """Drop a request; others are untouched. An unknown uid is no error."""
        if self._rows.pop(uid, None) is not None:
            self._queue.remove(uid)

    def bound_prefix_cache(self, nbytes: int) -> None:
        """Nothing: there is none."""

    def close(self) -> None:
        """Drop the model and clear the buffer cache; nothing may be called afterwards."""
        self._model = None
        self._start_empty()
        mx.synchronize()
        release_unused()

    def warm_up(self) -> None:
        """Encode two texts alone and together; where that differs, each is encoded alone from now on."""
        texts = [tuple((1 + i * 7919) % self._vocabulary_size for i in range(length)) for length in self._trial_lengths]
        alone = np.concatenate([self._encode([text]) for text in texts])
        lengths = np.linalg.norm(alone, axis=1)
        if self._width == 1:  # a score may be next to nothing
            lengths = np.maximum(lengths, 1)
        difference = np.linalg.norm(self._encode(texts) - alone, axis=1) / lengths
        if not np.isfinite(difference).all():
            raise ValueError("the model's vectors are not finite")
        if not (difference <= _MAX_DIFFERENCE).all():
            log.warning("model %s encodes one text at a time: a batch gives other vectors", self._settings.name)
            self._queue.batches = False

    @property
    def _trial_lengths(self) -> tuple[int, ...]:
        return tuple(min(length, self._max_tokens) for length in _TRIAL_LENGTHS)

    def _start_empty(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._queue = TextQueue(self._settings.prefill_step_size)

    def _start_again(self) -> None:
        """After a failed step see whether the device still works."""
        self._start_empty()
        self._is_broken = True
        with suppress(*MODEL_ERRORS):
            self.warm_up()
            self._is_broken = False

    def _encode(self, texts: Sequence[Sequence[int]], seconds: Sequence[int] = ()) -> Vectors:
        """A vector for each text, as the model makes it; `seconds`: where each one's second part begins, 0 for none."""
        assert self._model is not None, "it is open"
        longest = max(map(len, texts))
        ids = np.full((len(texts), longest), self._padding_id, dtype=np.int32)
        mask = np.zeros((len(texts), longest), dtype=np.int32)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        segments = np.zeros_like(ids)
        for row, begin in enumerate(seconds):
            if begin:
                segments[row, begin : len(texts[row])] = 1
        vectors = self._model(mx.array(ids), mx.array(mask), mx.array(segments))
        return np.array(vectors.astype(mx.float32))

    def _hand_out(self, batch: Sequence[QueuedText], vectors: Vectors) -> Iterable[Encoded]:
        """One piece for each request in the batch. One with a vector that is no number fails alone."""
        of_request: dict[int, list[int]] = {}
        for place, text in enumerate(batch):
            of_request.setdefault(text.uid, []).append(place)
        for uid, places in of_request.items():
            row = self._rows[uid]
            request, own = row.request, vectors[places]
            if not np.isfinite(own).all():
                self.remove(uid)
                yield Encoded(uid, [], failure="a vector is not finite")
                continue
            packed = _pack(own, request.dimensions, normalize=request.normalize)
            row.left -= len(places)
            if not row.left:
                del self._rows[uid]
            ended = "" if row.left else "all"
            yield Encoded(uid, [(batch[place].index, one) for place, one in zip(places, packed, strict=True)], ended)

    def _check(self, request: EncodeRequest) -> None:
        longest, limit = request.context_tokens, self._vocabulary_size - 1
        if not all(ids and min(ids) >= 0 and max(ids) <= limit for _, ids in request.texts):
            raise invalid_parameter([FieldViolation("texts", f"token ids must lie between 0 and {limit}")])
        if longest > self._max_tokens or request.dimensions > self._width:
            text = f"a text may have {self._max_tokens} tokens, a vector {self._width} dimensions"
            raise invalid_parameter([FieldViolation("texts", text)])


def _pack(vectors: Vectors, dimensions: int, *, normalize: bool) -> list[bytes]:
    """Little-endian float32, one for each vector."""
    kept = vectors[:, :dimensions] if dimensions else vectors
    if normalize:
        kept = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), _LEAST_LENGTH)
    return [row.astype("<f4").tobytes() for row in kept]
