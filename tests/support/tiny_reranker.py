"""Tiny random rerankers, laid out as on the hub, made in milliseconds without a network."""

import json
from pathlib import Path
from typing import Any

from .tiny_embedder import CONFIGS, MAX_TOKENS, build_tokenizer

MODEL_TYPES = ("bert", "xlm-roberta", "modernbert")
PREFIXES = {"bert": "bert.", "xlm-roberta": "roberta.", "modernbert": "model."}
HEADS = ("classifier.", "head.")
SPREAD = 8.0
"""Of the classifier's weights, so that the scores lie apart."""


def build(
    folder: Path,
    model_type: str = "bert",
    *,
    seed: int = 0,
    layers: int = 2,
    labels: int = 1,
    max_tokens: int = MAX_TOKENS,
    **config_changes: Any,
) -> Path:
    """Write a model folder and return it."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    from mlx_vlm.utils import get_model_and_args

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **CONFIGS[model_type],
        "model_type": model_type,
        "architectures": ["TinyForSequenceClassification"],
        "vocab_size": build_tokenizer(folder),
        "num_hidden_layers": layers,
        "max_position_embeddings": max_tokens + (2 if model_type == "xlm-roberta" else 0),
        "id2label": {str(i): f"LABEL_{i}" for i in range(labels)},
        **config_changes,
    }
    _tell_segments(folder, model_type)
    module, _ = get_model_and_args({**config, "model_type": model_type.replace("-", "_")})
    mx.random.seed(seed)
    model = module.SequenceClassificationModel(module.ModelConfig.from_dict({**config, "num_labels": labels}))
    drawn = tree_map(lambda each: mx.random.normal(each.shape) / each.shape[-1] ** 0.5, model.parameters())
    weights = {
        name if name.startswith(HEADS) else PREFIXES[model_type] + name: array * (SPREAD if "classifier" in name else 1)
        for name, array in tree_flatten(drawn)
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _tell_segments(folder: Path, model_type: str) -> None:
    """BERT's tokenizers count them, the others' don't."""
    path = folder / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]
    names = names if model_type == "bert" else [name for name in names if name != "token_type_ids"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_input_names": names}))
