"""What the engine takes from mlx_vlm, imported so that the process stays as it was; only where a vision model is used.

mlx_vlm is pinned exactly: `load_model` and the classes of its models are not meant for others. Nothing of its own
reading of images is used, which opens any string as a URL or a file.
"""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from .upstream import keep_open_files_limit

with keep_open_files_limit():
    import mlx_vlm.utils as mlx_vlm
    from mlx_vlm.generate.ar import generate_step
    from mlx_vlm.generate.common import _chunked_prefill_enabled
    from mlx_vlm.models.cache import make_prompt_cache
    from transformers import AutoProcessor

__all__ = [
    "first_logprobs",
    "knows_vision_architecture",
    "load_processor",
    "load_vision_model",
    "make_prompt_cache",
    "may_be_cut",
    "model_classes",
]

MODEL_TYPE_ERRORS = (ValueError, KeyError, AttributeError, TypeError, ImportError)


def knows_vision_architecture(config: dict[str, Any]) -> bool:
    """Whether mlx_vlm has a model that reads images and writes text for this config.json."""
    try:
        classes, _ = mlx_vlm.get_model_and_args({key: value for key, value in config.items() if key != "model_file"})
    except MODEL_TYPE_ERRORS:
        return False
    return hasattr(classes, "LanguageModel") and hasattr(classes.Model, "get_input_embeddings")


def load_vision_model(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A model with its weights still unread, and its config with what the family's defaults add to it. No code of the
    folder is run: `check_model_folder` refused any that is not trusted."""
    model, config = mlx_vlm.load_model(folder, lazy=True), mlx_vlm.load_config(folder)
    text = getattr(model.config, "text_config", None)
    return model, {**config, "text_config": vars(text)} if is_dataclass(text) else config


def may_be_cut(model: Any, ids: Any, inputs: dict[str, Any]) -> bool:
    """Whether this prompt may be prefilled in pieces; in some families the tokens of a picture see each other."""
    embeddings = inputs["inputs_embeds"]
    return bool(_chunked_prefill_enabled(model, input_ids=ids, inputs_embeds=embeddings, prefill_kwargs=inputs))


def first_logprobs(model: Any, ids: Any, pixel_values: Any, mask: Any, values: dict[str, Any]) -> Any:
    """Log probabilities of the first new token as mlx_vlm's own generation finds them, the prompt in one piece."""
    steps = generate_step(ids, model, pixel_values, mask, max_tokens=1, prefill_step_size=None, **values)
    try:
        return next(steps)[1].reshape(-1)
    finally:
        steps.close()


def model_classes(config: dict[str, Any]) -> Any:
    """The family's classes: Model, ModelConfig and so on."""
    return mlx_vlm.get_model_and_args(config)[0]


def load_processor(folder: Path, *, trust_remote_code: bool) -> Any:
    """transformers' processor as mlx_vlm completes it; from the folder alone."""
    config = mlx_vlm.load_config(folder)
    mlx_vlm.get_model_and_args(config)  # it registers the family's own processor, which needs no torch
    processor = AutoProcessor.from_pretrained(
        str(folder), trust_remote_code=trust_remote_code, local_files_only=True, use_fast=True
    )
    own = mlx_vlm.load_image_processor(folder)
    if own is not None:
        processor.image_processor = own
    return processor
