"""Tiny random models of several architectures (weights and config only: no tokenizer), for tests of the engine."""

import json
from pathlib import Path
from typing import Any

VOCABULARY_SIZE = 160

_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_STATE_SPACE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 8,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _TRANSFORMER,
    "qwen3": _TRANSFORMER,
    # A window of 16 tokens, so that it wraps within a test.
    "gemma3_text": {**_TRANSFORMER, "sliding_window": 16, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8},
    # Mixed lengths in one prefill are wrong for it, though its cache says it can be batched.
    "mamba": _STATE_SPACE,
    "mamba2": {
        **_STATE_SPACE,
        "num_heads": 4,
        "head_dim": 16,
        "n_groups": 1,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
    },
    # Its cache (ChunkedKVCache) can't be batched at all.
    "llama4": {
        "text_config": {
            **_TRANSFORMER,
            "num_hidden_layers": 4,
            "model_type": "llama4_text",
            "vocab_size": VOCABULARY_SIZE,
            "attention_bias": False,
            "attention_chunk_size": 32,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 64,
            "num_experts_per_tok": 1,
            "num_local_experts": 2,
            "rope_scaling": None,
            "use_qk_norm": False,
        }
    },
}


def build(folder: Path, model_type: str, *, seed: int = 0) -> Path:
    """Write a model folder that mlx_lm loads and return it."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map_with_path

    from inferd_server.engine.upstream import _get_classes

    config = {**CONFIGS[model_type], "model_type": model_type, "vocab_size": VOCABULARY_SIZE}
    model_class, arguments_class = _get_classes(config)
    mx.random.seed(seed)
    model = model_class(arguments_class.from_dict(config))

    def random_like(name: str, array: Any) -> Any:
        if array.ndim == 1 or "A_log" in name:
            return array.astype(mx.float32)
        return mx.random.normal(array.shape) / array.shape[-1] ** 0.5

    weights = dict(tree_flatten(tree_map_with_path(random_like, model.parameters())))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
