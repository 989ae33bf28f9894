"""A tiny random Llama with a byte-level tokenizer and a chat template, made in milliseconds without a network.

Deterministic for a seed: tests compare tokens with mlx-lm on the same folder.
"""

import json
from pathlib import Path

CHAT_TEMPLATE = (
    "{%- for m in messages -%}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
TOOLS_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for tool_call in m.tool_calls or [] %}{% set tool_call = tool_call.function %}"
    '<tool_call>\n{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def build_tokenizer(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the vocabulary size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *MARKERS))}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocabulary)


def build(
    folder: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    seed: int = 0,
    quantization_bits: int = 0,
    context_length: int = 4096,
    chat_template: str | None = CHAT_TEMPLATE,
    shards: int = 1,
) -> Path:
    """Write a model folder that mlx_lm loads and return it. `layers` and `hidden` set its size."""
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten, tree_map
    from mlx_lm.models import llama

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary_size = build_tokenizer(folder, chat_template)
    config: dict[str, object] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary_size,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": context_length,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs.from_dict(config))

    def random_like(array):  # type: ignore[no-untyped-def]
        if array.ndim == 1:
            return array
        return (mx.random.normal(array.shape) / array.shape[-1] ** 0.5).astype(mx.float32)

    model.update(tree_map(random_like, model.parameters()))
    if quantization_bits:
        nn.quantize(model, group_size=32, bits=quantization_bits)
        config["quantization"] = {"group_size": 32, "bits": quantization_bits}
    _save(folder, dict(tree_flatten(model.parameters())), shards)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def _save(folder: Path, weights: dict, shards: int) -> None:  # type: ignore[type-arg]
    import mlx.core as mx

    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
        return
    names, index = sorted(weights), {}
    for shard in range(shards):
        part = {name: weights[name] for name in names[shard::shards]}
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mx.save_safetensors(str(folder / file), part, {"format": "mlx"})
        index.update(dict.fromkeys(part, file))
    total = sum(array.nbytes for array in weights.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )
