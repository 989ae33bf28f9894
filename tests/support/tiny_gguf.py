"""A GGUF file like SmolLM2's, tiny and random: the same keys, float32 weights."""

from pathlib import Path
from typing import Any


def write_gguf(file: Path, *, layers: int = 1, hidden: int = 64, **changes: Any) -> Path:
    """Write the file and return it. `changes` replace metadata (keys with `__` for `.`)."""
    import mlx.core as mx
    from tokenizers import pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "ab"]
    kinds = [3, 3, 3] + [1] * (len(tokens) - 3)
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.file_type": mx.array(0, mx.uint32),
        "llama.embedding_length": mx.array(hidden, mx.uint32),
        "llama.block_count": mx.array(layers, mx.uint32),
        "llama.feed_forward_length": mx.array(2 * hidden, mx.uint32),
        "llama.attention.head_count": mx.array(4, mx.uint32),
        "llama.attention.head_count_kv": mx.array(2, mx.uint32),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.vocab_size": mx.array(len(tokens), mx.uint32),
        "llama.rope.freq_base": mx.array(1e4),
        "llama.context_length": mx.array(512, mx.uint32),
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": mx.array(kinds, mx.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": mx.array(1, mx.uint32),
        "tokenizer.ggml.eos_token_id": mx.array(2, mx.uint32),
        "tokenizer.ggml.padding_token_id": mx.array(2, mx.uint32),
        "tokenizer.ggml.unknown_token_id": mx.array(0, mx.uint32),
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }
    metadata.update({key.replace("__", "."): value for key, value in changes.items()})
    mx.save_gguf(str(file), _weights(layers, hidden, len(tokens)), metadata)
    return file


def _weights(layers: int, hidden: int, vocabulary_size: int) -> dict[str, Any]:
    import mlx.core as mx

    shapes = {"token_embd.weight": (vocabulary_size, hidden), "output_norm.weight": (hidden,)}
    for layer in range(layers):
        block = {
            "attn_q": (hidden, hidden),
            "attn_k": (hidden // 2, hidden),
            "attn_v": (hidden // 2, hidden),
            "attn_output": (hidden, hidden),
            "ffn_gate": (2 * hidden, hidden),
            "ffn_up": (2 * hidden, hidden),
            "ffn_down": (hidden, 2 * hidden),
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
        }
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in block.items()})
    mx.random.seed(0)
    return {name: mx.random.normal(shape) / hidden**0.5 for name, shape in shapes.items()}
