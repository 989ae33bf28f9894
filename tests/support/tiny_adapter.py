"""A random LoRA adapter for a tiny model, as mlx_lm writes it."""

import json
from pathlib import Path
from typing import Any


def build(folder: Path, base: Path, *, seed: int = 1, kind: str = "lora", rank: int = 4, dropout: float = 0.5) -> Path:
    """Write an adapter (`kind`: lora, dora or full) for the model in `base` that changes its answers; returns `folder`.

    Its dropout would change every answer of a model that is left in training.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    folder.mkdir(parents=True)
    config: dict[str, Any] = {"fine_tune_type": kind}
    model, _ = load_model(base)
    if kind != "full":
        parameters = {"rank": rank, "scale": 2.0, "dropout": dropout, "keys": ["self_attn.q_proj", "mlp.up_proj"]}
        config |= {"num_layers": 2, "lora_parameters": parameters}
        linear_to_lora_layers(model, 2, parameters, use_dora=kind == "dora")
    mx.random.seed(seed)
    trained = ("lora_a", "lora_b") if kind != "full" else ("q_proj.weight", "up_proj.weight")
    weights = {
        name: mx.random.normal(array.shape) / array.shape[0] ** 0.5 if name.endswith(trained) else array
        for name, array in tree_flatten(model.parameters())
        if name.endswith((*trained, ".m"))
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
