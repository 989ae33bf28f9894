"""What opens a model of each kind. The engine's modules are imported when a model needs them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferd_server.core.model import EngineKind, EngineSettings, Loading, ModelEntry
from inferd_server.engine.engine import Engine, EngineOf
from inferd_server.engine.importing import IMPORTS

if TYPE_CHECKING:
    from inferd_server.engine.vision_inputs import PictureReader

OpenEngine = Callable[[EngineSettings, Loading], EngineOf[Any, Any]]


def _open_language_engine(settings: EngineSettings, loading: Loading) -> Engine:
    # Imported here: mlx_lm takes a second or two, and the port should be open by then.
    with IMPORTS:
        from inferd_server.engine.language import open_language_engine  # noqa: PLC0415

    return open_language_engine(settings, loading)


def _open_embedding_engine(settings: EngineSettings, loading: Loading) -> EngineOf[Any, Any]:
    with IMPORTS:
        from inferd_server.engine.embedding import open_embedding_engine  # noqa: PLC0415

    return open_embedding_engine(settings, loading)


def _open_vision_engine(settings: EngineSettings, loading: Loading) -> Engine:
    with IMPORTS:
        from inferd_server.engine.vision import open_vision_engine  # noqa: PLC0415

    return open_vision_engine(settings, loading)


OPENERS: dict[EngineKind, OpenEngine] = {
    EngineKind.LANGUAGE: _open_language_engine,
    EngineKind.EMBEDDING: _open_embedding_engine,
    EngineKind.RERANKING: _open_embedding_engine,
    EngineKind.VISION: _open_vision_engine,
}
"""What opens a model of each kind."""


def open_engine(settings: EngineSettings, loading: Loading) -> Engine:
    """Open a model with what its kind needs. Blocking; on the thread that is to own it."""
    return OPENERS[settings.kind](settings, loading)


def load_picture_reader(entry: ModelEntry) -> "PictureReader":
    """The processor that reads pictures for a vision model. Blocking."""
    # Imported here: only a server with a vision model pays for mlx_vlm.
    with IMPORTS:
        from inferd_server.engine.vision_inputs import PictureReader  # noqa: PLC0415

    engine = entry.engine
    return PictureReader.load(engine.path, trust_remote_code=engine.trust_remote_code, name=entry.name)
