"""Reading an embedder or a reranker into memory, on the thread that will own it; loading.py does it for the others."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten

from inferd_server.core.model import EngineKind, EngineSettings, Loading

from .encoder_folder import dense_files, read_encoder_folder
from .encoder_models import EncoderModel, PooledModel, ScoringModel
from .encoder_upstream import load_embedding_model, load_sequence_classification_model
from .headers import read_object, weight_files
from .loading import checked, read_weights
from .reranker_folder import read_reranker_folder


@dataclass(slots=True)
class LoadedEncoder:
    """A model in memory, its config.json, the longest text it reads, in tokens, and the width of its vectors."""

    model: EncoderModel
    config: dict[str, Any]
    max_tokens: int
    width: int
    weights_nbytes: int


def load_encoder(settings: EngineSettings, loading: Loading) -> LoadedEncoder:
    """Check the folder and load the model.

    Raises:
        InferdError: MODEL_CORRUPT, MODEL_UNSUPPORTED or MODEL_LOAD_FAILED.
        LoadAbandoned: as `loading` wished.
    """
    return checked(settings, lambda: _load(settings, loading))


def _load(settings: EngineSettings, loading: Loading) -> LoadedEncoder:
    config = read_object(settings.path / "config.json") or {}
    with _folder_of_weights(settings.path) as view:
        is_reranker = settings.kind is EngineKind.RERANKING
        model: Any = (load_sequence_classification_model if is_reranker else load_embedding_model)(view, lazy=True)
    arrays = [array for _, array in tree_flatten(model.parameters())]
    nbytes = read_weights(arrays, loading)
    if is_reranker:
        reranker = read_reranker_folder(settings.path, config)
        scoring = ScoringModel(model, has_segments=reranker.has_segments)
        return LoadedEncoder(scoring, config, reranker.facts.max_tokens, 1, nbytes)
    folder = read_encoder_folder(settings.path, config)
    pooled = PooledModel(model, folder.pooling)
    return LoadedEncoder(pooled, config, folder.facts.max_tokens, folder.facts.width, nbytes)


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
