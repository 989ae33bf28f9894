"""Tiny random embedders in sentence-transformers' layout, made in milliseconds without a network."""

import json
import string
from pathlib import Path
from typing import Any

WORDS = ("the", "cat", "dog", "sat", "on", "mat", "movie", "film", "query", "document")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_TOKENS = 64
WIDTH = 32

_ENCODER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_TOKENS + 8,
    "pad_token_id": 0,
}
_DECODER: dict[str, Any] = {
    **_ENCODER,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_ENCODER, "architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": 1e-12},
    "xlm-roberta": {**_ENCODER, "architectures": ["XLMRobertaModel"], "pad_token_id": 1, "layer_norm_eps": 1e-5},
    "modernbert": {**_ENCODER, "architectures": ["ModernBertModel"], "local_attention": 8},
    "qwen3": {**_DECODER, "architectures": ["Qwen3ForCausalLM"]},
    "gemma3_text": {
        **_DECODER,
        "architectures": ["Gemma3TextModel"],
        "sliding_window": 512,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8,
    },
}
POOLING = {"qwen3": "lasttoken", "modernbert": "cls"}


def build_tokenizer(folder: Path) -> int:
    """Write a WordPiece tokenizer (words above, and every other word letter by letter); returns its size."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [*SPECIAL_TOKENS, *WORDS, *string.ascii_lowercase, *string.digits, *string.punctuation]
    pieces += [f"##{character}" for character in string.ascii_lowercase + string.digits]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    # As in the folders of sentence-transformers: none of it may have a say in the server.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocabulary)


def build(
    folder: Path,
    model_type: str = "bert",
    *,
    seed: int = 0,
    pooling: str | None = None,
    normalize: bool = True,
    layers: int = 2,
    hidden: int = WIDTH,
    max_tokens: int = MAX_TOKENS,
    prompts: dict[str, str] | None = None,
    **config_changes: Any,
) -> Path:
    """Write a model folder and return it. `layers` and `hidden` set its size."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    from mlx_vlm.embedding_loader import EMBEDDING_MODEL_REMAPPING
    from mlx_vlm.utils import get_model_and_args

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **CONFIGS[model_type],
        "model_type": model_type,
        "vocab_size": build_tokenizer(folder),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "max_position_embeddings": max_tokens + 8,
        **config_changes,
    }
    module, _ = get_model_and_args({**config, "model_type": EMBEDDING_MODEL_REMAPPING.get(model_type, model_type)})
    mx.random.seed(seed)
    model = module.Model(module.ModelConfig.from_dict(config))
    drawn = tree_map(lambda each: mx.random.normal(each.shape) / each.shape[-1] ** 0.5, model.parameters())
    weights = dict(tree_flatten(drawn))
    dense = {name: weights.pop(name) for name in list(weights) if name.startswith("dense.")}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    for number, array in enumerate(dense.values(), 2):
        modules.append(("Dense", f"{number}_Dense"))
        _write_dense(folder / f"{number}_Dense", array)
    modules += [("Normalize", f"{len(modules)}_Normalize")] * normalize
    _write_sentence_transformers(folder, modules, pooling or POOLING.get(model_type, "mean"), max_tokens, prompts)
    return folder


def _write_dense(folder: Path, array: Any) -> None:
    import mlx.core as mx

    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), {"linear.weight": array})
    config = {
        "in_features": array.shape[1],
        "out_features": array.shape[0],
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (folder / "config.json").write_text(json.dumps(config))


def _write_sentence_transformers(
    folder: Path, modules: list[tuple[str, str]], pooling: str, max_tokens: int, prompts: dict[str, str] | None
) -> None:
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}}))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
    keys = {f"pooling_mode_{key}": name == pooling for name, key in names.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(keys))
