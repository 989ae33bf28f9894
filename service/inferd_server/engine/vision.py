"""A vision model behind the engine's verbs: the language engine over mlx_vlm's model, once it was tried with pictures.

mlx_vlm's own batch generator is not used: it has one sampler and one number of logprobs for all its rows, draws each
token only when the one before it was read, and loses every row with the one that fails (docs/decisions/0004).
"""

import hashlib
import logging
import time
from dataclasses import replace

import mlx.core as mx

from inferd_server.core.errors import InferdError, model_unsupported
from inferd_server.core.generation import ChatPrompt, DecodeRequest, Message, Role, Sampling
from inferd_server.core.media import Blob, MediaKind, Picture
from inferd_server.core.model import Clock, EngineSettings, Loading
from inferd_server.text.tokenizer import Tokenizer

from . import caches as cache
from .engine import Engine
from .language import LanguageEngine, open_engine
from .loading import LoadedModel, folder_of_weights
from .row import Row
from .sight import SightedModel
from .trial import is_close
from .vision_inputs import PictureReader
from .vision_upstream import load_vision_model

log = logging.getLogger("inferd.engine")

TRIAL_SIDES = ((224, 168), (168, 224))
"""Pixels of the two pictures that a model is tried with."""


def open_vision_engine(settings: EngineSettings, loading: Loading, *, clock: Clock = time.monotonic) -> Engine:
    """Load a vision model, and try whether it sees as mlx_vlm lets it see. On the thread that will own it; blocking.

    Raises:
        InferdError: why the load failed; MODEL_UNSUPPORTED for families that can't be served rightly. Nothing of it is
            left in memory.
        LoadAbandoned: likewise.
    """
    return open_engine(settings, loading, read_vision_model, _make, clock)


def read_vision_model(settings: EngineSettings) -> LoadedModel:
    """mlx_vlm's model, with its weights still unread."""
    with folder_of_weights(settings.path) as folder:
        model, config = load_vision_model(folder)
    model.eval()
    sight = SightedModel(model)
    return LoadedModel(sight, config, sight=sight)


def _make(settings: EngineSettings, loaded: LoadedModel, clock: Clock) -> LanguageEngine:
    assert loaded.sight is not None
    if not Trial(settings, loaded.sight).run():
        log.warning("model %s decodes one request at a time: beside others it sees something else", settings.name)
        settings = replace(settings, max_batch_size=1)
    return LanguageEngine(settings, loaded, clock)


class Trial:
    """Two prompts with a picture each, read as the engine reads them and as mlx_vlm does by itself.

    There are families whose processors this version of transformers breaks, or whose pictures hang on the whole prompt;
    no list of names would stay true.
    """

    def __init__(self, settings: EngineSettings, sight: SightedModel) -> None:
        self._name = settings.name
        self._sight = sight
        folder, trust = settings.path, settings.trust_remote_code
        self._tokenizer = Tokenizer.load(folder, trust_remote_code=trust, name=settings.name)
        self._reader = PictureReader.load(folder, trust_remote_code=trust, name=settings.name)

    def run(self) -> bool:
        """Whether sequences with pictures may decode together.

        Raises:
            InferdError: MODEL_UNSUPPORTED where even one alone comes out differently.
        """
        if not self._tokenizer.picture_mark:
            raise model_unsupported(self._name, "its chat template does not show pictures")
        try:
            rows = [self._row(*sides) for sides in TRIAL_SIDES]
        except InferdError as error:
            told = error.violations[0].description if error.violations else error.message
            raise model_unsupported(self._name, f"its pictures can't be prepared: {told}") from None
        references = mx.stack([self._reference(row) for row in rows])
        filled = [self._fill(row) for row in rows]
        alone = mx.concatenate(
            [self._decode([row], cache.copied(each)) for row, each in zip(rows, filled, strict=True)]
        )
        if not is_close(alone, references):
            raise model_unsupported(self._name, "its pictures are not read as mlx_vlm reads them")
        return cache.can_merge(filled[0]) and is_close(self._decode(rows, cache.merge(filled)), references)

    def _row(self, width: int, height: int) -> Row:
        read = self._reader.read([_picture(width, height)], self._tokenizer.picture_mark)
        blob = Blob(MediaKind.IMAGE, "", b"", "")
        chat = ChatPrompt((Message(Role.USER, (blob, "What is this?")),))
        _, ids = self._tokenizer.encode_chat(chat, pictures=read.texts)
        return Row(0, DecodeRequest(tuple(ids), Sampling(temperature=0.0), 1, pictures=read.tensors))

    def _reference(self, row: Row) -> mx.array:
        assert row.request.pictures is not None
        logprobs: mx.array = self._sight.reference(row.request.prompt_ids, row.request.pictures).astype(mx.float32)
        return logprobs

    def _fill(self, row: Row) -> cache.Caches:
        assert row.request.pictures is not None
        row.seen = self._sight.see(row.context, row.request.pictures)
        while row.seen.steps:
            row.seen.compute(0.0, time.monotonic)
        row.rope_delta = row.seen.rope_delta
        caches = cache.fresh(self._sight)
        first = row.unfilled // 2 if row.seen.may_be_cut else row.unfilled
        for count in filter(None, (first, row.unfilled - first)):
            self._sight.fill(row, caches, row.context[row.filled : row.filled + count])
            mx.eval(cache.states(caches))
            row.filled += count
        return caches

    def _decode(self, rows: list[Row], caches: cache.Caches) -> mx.array:
        inputs = mx.array([[row.context[-1]] for row in rows])
        logits: mx.array = self._sight(inputs, caches, **self._sight.decode_inputs(rows))[:, -1].astype(mx.float32)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _picture(width: int, height: int) -> Picture:
    """Stripes: something to see, and the same at each load."""
    rgb = bytes((7 * x + 13 * y * channel) % 256 for y in range(height) for x in range(width) for channel in range(3))
    return Picture(width, height, rgb, hashlib.sha256(rgb).hexdigest())
