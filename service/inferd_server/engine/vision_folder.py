"""Whether a model folder is one of a vision model. Small reads only; mlx_vlm is looked at, not imported."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def is_vision_folder(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the config describes eyes, the processor for them lies beside it, and mlx_vlm may know the family.

    A family that mlx_lm alone knows is left to it; one that neither seems to know is not (mlx_vlm has other names for
    some), so that its load says what is missing.
    """
    if not isinstance(config.get("vision_config"), Mapping) or not has_processor(folder):
        return False
    name = str(config.get("model_type")).lower().replace("-", "_")
    return name in _families("mlx_vlm") or name not in _families("mlx_lm")


def has_processor(folder: Path) -> bool:
    """Whether the folder says how its images are to be prepared."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


@cache
def _families(package: str) -> frozenset[str]:
    """Names of the models that a package holds; none where it is not installed."""
    spec = find_spec(package)
    folders = () if spec is None else spec.submodule_search_locations or ()
    return frozenset(path.stem for folder in folders for path in (Path(folder) / "models").glob("[a-z]*"))
