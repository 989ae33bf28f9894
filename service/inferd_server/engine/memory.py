"""How much memory a model's work takes: pure formulas in bytes. No mlx is imported.

A device that runs out of memory kills the process (the CPU backend) or fails late (Metal): whether work fits has to be
known before it starts. So the formulas give upper bounds, checked against measurement in the tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

KV_BLOCK_TOKENS = 256
"""KV caches grow by so many tokens at a time, wherever they stand."""
SCORE_NBYTES = 4
"""Attention scores are float32 where attention is not fused."""
TRANSIENT = 2
"""Caches that grow, and batches that are joined or left, are copied: for a moment the old and the new are there."""
SCORE_COPIES = 3
"""Of an embedder's attention scores at a time: before, with and after the mask and the softmax."""
MASK_COPIES = 8
"""Of the masks that an embedder may build, as large as one head's scores."""
PIXEL_COPIES = 3
"""Of a picture's numbers: as they came, in the model's precision, and laid out for its first layer."""
LOGIT_COPIES = 8
"""Vectors as wide as the logits that sampling may need at once for a row (float32)."""


class WorkFootprint(Protocol):
    """What a loaded model's work takes beside its weights."""

    @property
    def step_tokens(self) -> int:
        """Most tokens that one step takes in."""

    def peak_nbytes(self, rows: int, longest: int, context: int, media_nbytes: int = 0) -> int:
        """Most bytes at any moment for so many requests together. Grows with each argument; 0 without rows.

        Args:
            longest: the most `total_tokens` among them (core/work.py).
            context: the most `context_tokens`.
            media_nbytes: the most `media_nbytes`.
        """


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What the caches of one sequence take in all layers, as probed when the model was loaded.

    Attributes:
        token_nbytes: for each token, without end (plain KV).
        windows: (tokens, nbytes per token) of caches that hold only the last tokens.
        fixed_nbytes: however long the sequence is (states).
    """

    token_nbytes: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    fixed_nbytes: int = 0

    def with_draft(self, draft: "CacheNeed") -> "CacheNeed":
        """With the plain caches of a draft model, which follows one sequence at a time."""
        return replace(self, token_nbytes=self.token_nbytes + draft.token_nbytes)

    def nbytes(self, tokens: int, step_tokens: int) -> int:
        """Most that one sequence of at most `tokens` takes, prefilled in chunks of `step_tokens`."""
        room = tokens + KV_BLOCK_TOKENS
        windows = sum(each * min(room, window + step_tokens) for window, each in self.windows)
        return self.fixed_nbytes + self.token_nbytes * room + windows


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a loaded model's work takes beside its weights.

    Attributes:
        cache: of one sequence.
        heads: query heads of one layer.
        step_tokens: most tokens of one prefill chunk.
        activation_nbytes: of one token in a prefill chunk.
        logits_nbytes: of one row's logits, in float32.
        embedding_nbytes: of one token as the first layer takes it, kept for prompts with pictures.
    """

    cache: CacheNeed = CacheNeed()
    heads: int = 0
    step_tokens: int = 0
    activation_nbytes: int = 0
    logits_nbytes: int = 0
    embedding_nbytes: int = 0

    def cache_nbytes(self, rows: int, longest: int) -> int:
        """Most bytes of caches for so many rows: in a batch each takes the room of the longest.

        Args:
            longest: tokens, prompt and output, of the longest row at its end.
        """
        return rows * self.cache.nbytes(longest, self.step_tokens)

    def peak_nbytes(self, rows: int, longest: int, context: int, media_nbytes: int = 0) -> int:
        """Most bytes that decoding these rows together takes at any moment: caches and their copies, one prefill
        chunk, logits; and the pictures of one prompt, and what was seen in those of all. Grows with each argument; 0
        without rows.

        Args:
            context: tokens of the longest prompt.
        """
        if not rows:
            return 0
        chunk = min(self.step_tokens, context)
        scores = 2 * self.heads * SCORE_NBYTES * (chunk * context + rows * longest)
        caches = TRANSIENT * self.cache_nbytes(rows, longest)
        pictures = media_nbytes + TRANSIENT * rows * context * self.embedding_nbytes if media_nbytes else 0
        return caches + scores + chunk * self.activation_nbytes + rows * LOGIT_COPIES * self.logits_nbytes + pictures


def footprint(config: Mapping[str, Any], cache: CacheNeed, *, step_tokens: int, width: int, itemsize: int) -> Footprint:
    """The footprint of a model by its config.json (`text_config` for models with several parts) and a probe.

    Args:
        width: of the logits.
        itemsize: bytes of one activation.
    """
    part = config.get("text_config") or config
    hidden = _number(part, "hidden_size", "d_model", "n_embd", "dim")
    inner = _number(part, "intermediate_size", "moe_intermediate_size") or 4 * hidden
    experts = max(1, _number(part, "num_experts_per_tok"))
    state = _number(part, "state_size", "ssm_state_size", "mamba_d_state")
    return Footprint(
        cache=cache,
        heads=_number(part, "num_attention_heads", "num_heads", "n_head", "n_heads"),
        step_tokens=step_tokens,
        activation_nbytes=(8 * hidden + inner * (4 * experts + 2 * state)) * itemsize,
        logits_nbytes=width * 4,
        embedding_nbytes=hidden * itemsize,
    )


@dataclass(frozen=True, slots=True)
class EncoderFootprint:
    """What an embedder's work takes beside its weights: one batch at a time.

    Attributes:
        batch_tokens: most tokens of a batch, padding included, but for one long text.
        longest_text: most tokens of a text.
        heads: query heads of one layer.
        activation_nbytes: of one token.
        itemsize: bytes of one activation.
    """

    batch_tokens: int
    longest_text: int
    heads: int
    activation_nbytes: int
    itemsize: int

    @property
    def step_tokens(self) -> int:
        """Most tokens that one step takes in."""
        return max(self.batch_tokens, self.longest_text)

    def peak_nbytes(self, rows: int, longest: int, context: int, media_nbytes: int = 0) -> int:
        """See WorkFootprint: `context` is the longest text's tokens, `longest` the most that a request has in all."""
        # Less than half of a batch is padding (text_queue.py).
        tokens = min(max(self.batch_tokens, context), 2 * rows * longest)
        scores = (SCORE_COPIES * self.heads * SCORE_NBYTES + MASK_COPIES * self.itemsize) * context
        return tokens * (self.activation_nbytes + scores)


def encoder_footprint(
    config: Mapping[str, Any], *, batch_tokens: int, longest_text: int, itemsize: int
) -> EncoderFootprint:
    """The footprint of an embedder by its config.json; the other arguments are EncoderFootprint's."""
    hidden = _number(config, "hidden_size")
    inner = _number(config, "intermediate_size") or 4 * hidden
    heads = _number(config, "num_attention_heads")
    attention = max(hidden, heads * _number(config, "head_dim"))
    activation_nbytes = (12 * hidden + 8 * attention + 6 * inner) * itemsize
    return EncoderFootprint(batch_tokens, longest_text, heads, activation_nbytes, itemsize)


@dataclass(frozen=True, slots=True)
class PictureNeed:
    """What looking at pictures takes, in float32: most of it the scores, each picture's patches by themselves.

    Attributes:
        patch_values: numbers of one patch, as a processor lays them out.
        heads: of one layer whose scores are held in memory; 0 where attention is fused.
        activation_nbytes: of one patch.
    """

    patch_values: int
    heads: int
    activation_nbytes: int

    def nbytes(self, patches: Sequence[int]) -> int:
        """Most bytes for pictures of so many patches, read together."""
        each = SCORE_NBYTES * self.patch_values * PIXEL_COPIES + self.activation_nbytes
        scores = SCORE_COPIES * self.heads * SCORE_NBYTES * sum(count * count for count in patches)
        return sum(patches) * each + scores


def picture_need(config: Mapping[str, Any], fused_widths: Sequence[int]) -> PictureNeed:
    """By a model's config.json.

    Args:
        fused_widths: of heads whose attention the device computes without holding scores.
    """
    eyes = config.get("vision_config")
    eyes = eyes if isinstance(eyes, Mapping) else {}
    side = _number(eyes, "patch_size", "spatial_patch_size") or 14
    width = max(_number(eyes, key) for key in ("hidden_size", "embed_dim", "width")) or 1024
    inner = _number(eyes, "intermediate_size") or 4 * width
    heads = _number(eyes, "num_attention_heads", "num_heads") or 16
    return PictureNeed(
        patch_values=3 * side * side * (_number(eyes, "temporal_patch_size") or 1),
        heads=0 if width // heads in fused_widths else heads,
        activation_nbytes=(12 * width + 4 * inner) * SCORE_NBYTES,
    )


def _number(config: Mapping[str, Any], *keys: str) -> int:
    """The first whole number among some keys; 0 without one."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)
