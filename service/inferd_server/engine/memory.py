"""How much memory a model's work takes: pure formulas in bytes, from its config.json. No mlx is imported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KV_BLOCK_TOKENS = 256
"""KV caches grow by so many tokens at a time."""
SCORE_NBYTES = 4
"""Attention scores are float32 where attention is not fused."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes that a KV cache depends on."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int

    @property
    def kv_nbytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize


def attention_shape(config: Mapping[str, Any], itemsize: int) -> AttentionShape | None:
    """The shape by config.json (`text_config` for models with several parts), or None where it does not say.

    Args:
        itemsize: bytes of one activation.
    """
    part = config.get("text_config") or config
    try:
        heads = int(part["num_attention_heads"])
        return AttentionShape(
            layers=int(part["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(part.get("num_key_value_heads") or heads),
            head_dim=int(part.get("head_dim") or int(part["hidden_size"]) // heads),
            itemsize=itemsize,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def kv_bound_nbytes(shape: AttentionShape, lengths: Sequence[int]) -> int:
    """Most bytes of KV cache for rows that end at `lengths` tokens: a batch gives each row the longest one's room."""
    blocks = -(-max(lengths, default=0) // KV_BLOCK_TOKENS)
    return len(lengths) * blocks * KV_BLOCK_TOKENS * shape.kv_nbytes_per_token


def prefill_peak_nbytes(shape: AttentionShape, step_tokens: int, context_tokens: int) -> int:
    """Transient bytes of one prefill chunk beside the KV cache, where attention is not fused: its scores, twice."""
    return 2 * shape.heads * step_tokens * context_tokens * SCORE_NBYTES
