"""What the engine takes from mlx_lm, imported so that the process stays as it was.

mlx_lm is pinned exactly, because part of this is outside its public names: `load_model`, `_get_classes` and the
protocol of its caches (`merge`, `extend`, `filter`, `prepare`, `finalize`), which caches.py uses.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def keep_open_files_limit() -> Iterator[None]:
    """`import mlx_lm` lowers RLIMIT_NOFILE to 2048 (a server can't afford that, and can't undo it) or raises where the
    hard limit is smaller. While this is open, such calls do nothing."""
    set_limit = resource.setrlimit

    def set_other_limits(which: int, limits: tuple[int, int]) -> None:
        if which != resource.RLIMIT_NOFILE:
            set_limit(which, limits)

    resource.setrlimit = set_other_limits
    try:
        yield
    finally:
        resource.setrlimit = set_limit


# A folder that is missing a file must be an error, never a question to a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

with keep_open_files_limit():
    from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache
    from mlx_lm.utils import _get_classes, load_adapters, load_model

__all__ = [
    "KVCache",
    "QuantizedKVCache",
    "keep_open_files_limit",
    "knows_architecture",
    "load_adapters",
    "load_model",
    "make_prompt_cache",
]


def knows_architecture(config: dict[str, Any]) -> bool:
    """Whether mlx_lm has a model for this config.json."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type.replace("-", "_").isidentifier():
        return False
    try:
        _get_classes(config)
    except (ValueError, AttributeError, TypeError):  # no such module; a module that is no model; odd `architectures`
        return False
    return True
