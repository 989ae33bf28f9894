"""From decoded pictures to what a vision model reads: its processor's tensors, and the text that stands for each.

A processor wants a whole prompt, in which it repeats the placeholder of each picture as often as the picture has
tokens. It gets none: only the template's marks for pictures, with something unmistakable between them. So nothing that
a caller wrote passes through it, and a caller's text can hold whatever it likes.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from inferd_server.core.errors import FieldViolation, invalid_parameter, model_unsupported
from inferd_server.core.media import Picture

from .device import FUSED_HEAD_WIDTHS
from .headers import read_object
from .loading import MODEL_ERRORS
from .memory import picture_need
from .vision_upstream import load_processor

BETWEEN = "\U00100000"
"""Stands between two marks: a private character, which no mark has."""
OF_THE_PROMPT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
"""What a processor says about the text, which was none."""


@dataclass(frozen=True, slots=True)
class PictureTensors:
    """What a model reads the pictures of one prompt from. Nobody writes to it.

    Attributes:
        values: by name, as the model's `get_input_embeddings` takes them.
        work_nbytes: most bytes that looking at them takes.
        identity: the same for the same pictures in the same order, and different for others.
    """

    values: Mapping[str, Any]
    work_nbytes: int
    identity: str

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(value.nbytes for value in self.values.values() if isinstance(value, np.ndarray))


@dataclass(frozen=True, slots=True)
class ReadPictures:
    """What a prompt's pictures became: the text that stands for each in the prompt, and tensors."""

    texts: tuple[str, ...]
    tensors: PictureTensors


class PictureReader:
    """A model folder's processor. All methods may be called from several threads at once.

    Attributes:
        placeholders: ids of tokens that stand for pictures.
    """

    def __init__(self, processor: Any, config: Mapping[str, Any], name: str) -> None:
        """Use `load`."""
        self.placeholders = _placeholders(config, processor)
        self._need = picture_need(config, FUSED_HEAD_WIDTHS)
        self._processor = processor
        self._name = name

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False, name: str = "") -> "PictureReader":
        """Load from a model folder; blocking (0.1-0.5 s).

        Raises:
            InferdError: MODEL_UNSUPPORTED where the processor can't be used.
        """
        try:
            processor = load_processor(folder, trust_remote_code=trust_remote_code)
        except MODEL_ERRORS as failure:
            raise model_unsupported(name, f"its image processor can't be used: {_told(failure)}") from None
        if not callable(processor) or not hasattr(processor, "image_processor"):
            raise model_unsupported(name, f"its processor, {type(processor).__name__}, takes no images")
        return cls(processor, read_object(folder / "config.json") or {}, name)

    def read(self, pictures: Sequence[Picture], mark: str) -> ReadPictures:
        """Read pictures; blocking, and as long as they are large.

        Args:
            mark: what the model's chat template writes for a picture.

        Raises:
            InferdError: INVALID_PARAMETER where the processor does not take these pictures; MODEL_UNSUPPORTED where it
                does something else with marks.
        """
        processor = copy.copy(self._processor)
        processor.tokenizer = _Listener(self._processor.tokenizer)
        images = [Image.frombytes("RGB", (each.width, each.height), each.rgb) for each in pictures]
        skeleton = BETWEEN.join(["", *[mark] * len(images), ""])
        try:
            found = processor(text=[skeleton], images=images)
            values = {name: _plain(value) for name, value in found.items() if name not in OF_THE_PROMPT}
        except MODEL_ERRORS as failure:
            text = f"the model's image processor does not take them: {_told(failure)}"
            raise invalid_parameter([FieldViolation("chat.messages", text)]) from None
        texts = self._expanded(processor.tokenizer.heard, len(images))
        work_nbytes = self._need.nbytes(_patches(values, self._need.patch_values))
        return ReadPictures(texts, PictureTensors(values, work_nbytes, "\n".join(each.digest for each in pictures)))

    def _expanded(self, heard: Sequence[str], count: int) -> tuple[str, ...]:
        pieces = heard[0].split(BETWEEN) if len(heard) == 1 else []
        texts = tuple(pieces[1:-1])
        if len(texts) != count or pieces[0] or pieces[-1] or not all(map(self._shows_picture, texts)):
            raise model_unsupported(self._name, "its processor does not put placeholders in the place of each picture")
        return texts

    def _shows_picture(self, text: str) -> bool:
        """A model takes a picture without a placeholder, and does not look at it."""
        return not self.placeholders.isdisjoint(self._processor.tokenizer.encode(text, add_special_tokens=False))


class _Listener:
    """Stands in for the tokenizer inside a processor and notes what it is asked to encode."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.heard: list[str] = []

    def __call__(self, text: Any, *arguments: Any, **options: Any) -> Any:
        self.heard += [text] if isinstance(text, str) else text
        return self._tokenizer(text, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _placeholders(config: Mapping[str, Any], processor: Any) -> frozenset[int]:
    stated = [config.get(f"{media}_{key}") for media in ("image", "video") for key in ("token_id", "token_index")]
    stated += [getattr(processor, f"{media}_token_id", None) for media in ("image", "video")]
    return frozenset(each for each in stated if isinstance(each, int))


def _patches(values: Mapping[str, Any], patch_values: int) -> list[int]:
    """How many patches each picture has: by their grids where a processor flattens them, else all alike."""
    grids = [grid for name, value in values.items() if "grid" in name for grid in np.array(value).reshape(-1, 3)]
    if grids:
        return [int(grid.prod()) for grid in grids]
    sizes = [_sizes(value) for name, value in values.items() if "pixel" in name]
    return [math.ceil(size / patch_values) for each in sizes for size in each]


def _sizes(value: Any) -> list[int]:
    """Numbers of each picture in an array [..., channels, height, width], or in a list of such."""
    if isinstance(value, list):
        return [size for each in value for size in _sizes(each)]
    shape = getattr(value, "shape", ())
    return [math.prod(shape[-3:])] * math.prod(shape[:-3])


def _plain(value: Any) -> Any:
    """Without MLX: arrays of NumPy, which any thread may hold."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return np.array(value) if hasattr(value, "shape") else value


def _told(failure: Exception) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:200]
