"""Reading an embedder into memory, on the thread that will own it; as loading.py does for models that make tokens."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten

from inferd_server.core.model import EngineSettings, LoadAbandoned, Loading

from .checks import check_model_folder
from .device import release_unused
from .encoder_folder import EncoderFolder, dense_files, read_encoder_folder
from .encoder_upstream import load_embedding_model
from .headers import read_object, weight_files
from .loading import MODEL_ERRORS, explain, read_weights


@dataclass(slots=True)
class LoadedEncoder:
    """An embedder in memory, its config.json, and what else its folder says."""

    model: Any
    config: dict[str, Any]
    folder: EncoderFolder
    weights_nbytes: int


def load_encoder(settings: EngineSettings, loading: Loading) -> LoadedEncoder:
    """Check the folder and load the model.

    Raises:
        InferdError: MODEL_CORRUPT, MODEL_UNSUPPORTED or MODEL_LOAD_FAILED.
        LoadAbandoned: as `loading` wished.
    """
    check_model_folder(settings)
    failure: Exception
    try:
        return _load(settings, loading)
    except LoadAbandoned:
        failure = LoadAbandoned()
    except MODEL_ERRORS as error:
        failure = explain(settings, error)
    release_unused()
    raise failure


def _load(settings: EngineSettings, loading: Loading) -> LoadedEncoder:
    config = read_object(settings.path / "config.json") or {}
    folder = read_encoder_folder(settings.path, config)
    with _folder_of_weights(settings.path) as view:
        model: Any = load_embedding_model(view, lazy=True)
    # What the model itself would pool with: only its check is used, since it scales every vector to length 1.
    model.pooling_config = {"pooling_mode": folder.pooling}
    arrays = [array for _, array in tree_flatten(model.parameters())]
    return LoadedEncoder(model, config, folder, read_weights(arrays, loading))


@contextmanager
def _folder_of_weights(folder: Path) -> Iterator[Path]:
    """A folder of just the model's weights: mlx_vlm reads each *.safetensors, also those one folder further down.

    Usually the model's own; else a temporary one with links.
    """
    files = weight_files(folder)
    wanted = {*files, *dense_files(folder)}
    if wanted == {*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")}:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="inferd-") as temporary:
        view = Path(temporary)
        for file in (folder / "config.json", *wanted):
            link = view / file.relative_to(folder)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(file.absolute())
        yield view
