"""Reading a model into memory, on the thread that will own it: in pieces, with progress, and to be abandoned at any.

A failed load leaves nothing behind: errors leave here as fresh exceptions, since a traceback's frames hold the model.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten

from inferd_server.core.errors import InferdError, model_corrupt, model_load_failed, model_unsupported
from inferd_server.core.model import EngineSettings, LoadAbandoned, Loading

from .adapters import WEIGHTS_FILE, AdapterError, lacking
from .checks import check_model_folder
from .device import release_unused
from .headers import INDEX_FILE, weight_files
from .upstream import load_adapters, load_model

if TYPE_CHECKING:
    from .sight import SightedModel  # it imports mlx_vlm

PIECE_NBYTES = 32 << 20
"""Weights are read in pieces of about this size."""

MODEL_ERRORS = (ValueError, RuntimeError, LookupError, TypeError, AttributeError, OSError, ImportError, ArithmeticError)
"""What mlx_lm, its model classes and MLX raise for models that they can't load or run."""

MAX_MESSAGE_CHARACTERS = 300


class DraftError(ValueError):
    """A draft model that can't be loaded."""


@dataclass(slots=True)
class LoadedModel:
    """A model in memory."""

    model: Any
    config: dict[str, Any]
    weights_nbytes: int = 0
    draft: Any = None
    sight: "SightedModel | None" = None


Read = Callable[[EngineSettings], LoadedModel]
Loaded = TypeVar("Loaded")


def load_checked(settings: EngineSettings, loading: Loading, read: Read) -> LoadedModel:
    """Check the folder and load the model.

    Args:
        read: makes the model of a folder, with its weights still unread.

    Raises:
        InferdError: MODEL_CORRUPT, MODEL_UNSUPPORTED or MODEL_LOAD_FAILED.
        LoadAbandoned: as `loading` wished.
    """
    return checked(settings, lambda: _with_weights(read(settings), loading))


def checked(settings: EngineSettings, load: Callable[[], Loaded]) -> Loaded:
    """What `load` makes of a folder that was checked; when it fails, nothing of it is left in memory.

    Raises:
        InferdError: MODEL_CORRUPT, MODEL_UNSUPPORTED or MODEL_LOAD_FAILED.
        LoadAbandoned: `load` raised it.
    """
    check_model_folder(settings)
    failure: Exception
    try:
        return load()
    except LoadAbandoned:
        failure = LoadAbandoned()
    except MODEL_ERRORS as error:
        failure = explain(settings, error)
    release_unused()
    raise failure


def read_language_model(settings: EngineSettings) -> LoadedModel:
    """mlx_lm's model, its adapter laid over it, and its draft model."""
    with folder_of_weights(settings.path) as folder:
        model, config = load_model(folder, lazy=True, trust_remote_code=settings.trust_remote_code)
    if settings.adapter_path:
        _adapt(model, settings.adapter_path)
    draft = None if settings.draft_path is None else _load_draft(settings, settings.draft_path)
    return LoadedModel(model, config, draft=draft)


def _with_weights(loaded: LoadedModel, loading: Loading) -> LoadedModel:
    parts = [part for part in (loaded.model, loaded.draft) if part is not None]
    arrays = [array for part in parts for _, array in tree_flatten(part.parameters())]
    loaded.weights_nbytes = read_weights(arrays, loading)
    return loaded


def read_weights(arrays: Sequence[Any], loading: Loading) -> int:
    """Read what is still unread, in pieces; returns the bytes of all.

    Raises:
        LoadAbandoned: as `loading` wished.
    """
    total: int = sum(array.nbytes for array in arrays)
    done = 0
    _report(loading, done, total)
    for piece in _pieces(arrays):
        mx.eval(piece)
        done += sum(array.nbytes for array in piece)
        _report(loading, done, total)
    return total


def _load_draft(settings: EngineSettings, path: Path) -> Any:
    """The draft model, its weights still unread.

    Raises:
        DraftError: it can't be loaded.
    """
    try:
        with folder_of_weights(path) as folder:
            return load_model(folder, lazy=True, trust_remote_code=settings.trust_remote_code)[0]
    except MODEL_ERRORS as error:
        raise DraftError(f"{type(error).__name__}: {error}") from None


def _adapt(model: Any, adapter: Path) -> None:
    """Lay an adapter over a model whose weights are still unread.

    Raises:
        AdapterError: it does not fit.
    """
    try:
        load_adapters(model, str(adapter))
    except MODEL_ERRORS as error:
        raise AdapterError(" ".join(str(error).replace(str(adapter), adapter.name).split())) from None
    tensor = lacking(adapter, [name for name, _ in tree_flatten(model.parameters())])
    if tensor:
        raise AdapterError(f"it lacks the tensor {tensor!r}")
    model.eval()  # the layers it brings are in training: they would drop values out


def _report(loading: Loading, done: int, total: int) -> None:
    loading.progress(done, total)
    if loading.abandoned:
        raise LoadAbandoned


def _pieces(arrays: Sequence[Any]) -> Iterator[list[Any]]:
    piece: list[Any] = []
    nbytes = 0
    for array in arrays:
        piece.append(array)
        nbytes += array.nbytes
        if nbytes >= PIECE_NBYTES:
            yield piece
            piece, nbytes = [], 0
    if piece:
        yield piece


@contextmanager
def folder_of_weights(folder: Path) -> Iterator[Path]:
    """A folder whose `model*.safetensors`, which mlx_lm reads, are just the model's weight files.

    Usually the model's own; else a temporary one with links (an index that leaves out stray shards, other file names).
    """
    files = weight_files(folder)
    if set(files) == set(folder.glob("model*.safetensors")):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="inferd-") as temporary:
        view = Path(temporary)
        for path in [*folder.glob("*.json"), *folder.glob("*.py")]:
            if path.name != INDEX_FILE:
                (view / path.name).symlink_to(path.absolute())
        for number, path in enumerate(files):
            (view / f"model-{number:05d}.safetensors").symlink_to(path.absolute())
        yield view


def explain(settings: EngineSettings, error: Exception) -> InferdError:
    """What an exception of mlx_lm or MLX says about the folder; its text is kept, its traceback is not."""
    text = f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]
    if isinstance(error, AdapterError):
        message = f"the adapter does not fit the model: {error}"
        return model_corrupt(settings.name, WEIGHTS_FILE, message[:MAX_MESSAGE_CHARACTERS])
    if isinstance(error, DraftError):
        return model_load_failed(settings.name, f"the draft model can't be loaded: {error}"[:MAX_MESSAGE_CHARACTERS])
    if isinstance(error, json.JSONDecodeError):
        return model_corrupt(settings.name, "config.json", text)
    if isinstance(error, ValueError) and str(error).startswith("Missing "):
        return model_corrupt(settings.name, weight_files(settings.path)[0].name, f"weights are missing: {text}")
    if isinstance(error, NotImplementedError) or "not supported" in str(error):  # raised by mlx_lm for unknown layers
        return model_unsupported(settings.name, text)
    return model_load_failed(settings.name, text)
