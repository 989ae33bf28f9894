"""The one place that touches mlx_lm's cache objects: KV, sliding window and state caches, of a sequence or of a batch.

A model has a list of them, one per layer. Those of one sequence come from `fresh`; `merge` makes a batch of several,
which can be extended by another batch and reduced to some of its rows.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .memory import KV_BLOCK_TOKENS, CacheNeed
from .upstream import QuantizedKVCache, make_prompt_cache

Caches = list[Any]

PLAIN = "KVCache"
LIBRARIES = ("mlx_lm.models.cache", "mlx_vlm.models.cache")
"""mlx_vlm has classes of its own with the same names and attributes."""


def fresh(model: Any) -> Caches:
    """Empty caches for one sequence."""
    return list(make_prompt_cache(model))


def quantize(model: Any, bits: int, group_size: int) -> None:
    """Have the model's caches hold keys and values in so many bits, `group_size` of them with one scale.

    Raises:
        ValueError: that is not supported for this model.
    """
    caches = fresh(model)
    model(mx.array([[0]]), cache=caches)
    if not are_plain(caches):
        raise ValueError("kv_bits is not supported for this model: not all of its caches are plain KV caches")
    for width in {array.shape[-1] for layer in caches for array in (layer.keys, layer.values)}:
        if width % group_size:
            raise ValueError(f"kv_group_size {group_size} is not supported for this model: heads are {width} wide")
    layers = len(caches)
    model.make_cache = lambda: [QuantizedKVCache(group_size, bits) for _ in range(layers)]


def can_merge(caches: Caches) -> bool:
    """Whether sequences with such caches can be decoded together at all."""
    return all(hasattr(cache, "merge") for cache in caches)


def merge(sequences: Sequence[Caches]) -> Caches:
    """A batch with one row for each sequence."""
    return [layer[0].merge(layer) for layer in map(list, zip(*sequences, strict=True))]


def extend(batch: Caches, other: Caches) -> None:
    """Put the rows of `other` behind those of `batch`."""
    for mine, theirs in zip(batch, other, strict=True):
        mine.extend(theirs)


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Reduce a batch to some rows (at least one), in the order given."""
    for cache in batch:
        cache.filter(rows)


def nbytes(caches: Caches) -> int:
    """Bytes held."""
    return sum(cache.nbytes for cache in caches)


def states(caches: Caches) -> list[Any]:
    """What to evaluate to have the caches computed."""
    return [cache.state for cache in caches]


def rewind(caches: Caches, tokens: int) -> None:
    """Take back the last tokens of a sequence's plain caches; they are overwritten by the next."""
    for layer in caches:
        layer.trim(tokens)


def fill(model: Any, caches: Caches, chunks: Sequence[list[int]]) -> None:
    """Run one chunk of tokens for each row through the model, lazily; shorter ones are padded on the right."""
    lengths = [len(chunk) for chunk in chunks]
    longest = max(lengths)
    padding = [longest - length for length in lengths]
    if not any(padding):
        model(mx.array(list(chunks)), cache=caches)
        return
    for cache in caches:
        cache.prepare(lengths=lengths, right_padding=padding)
    model(mx.array([[*chunk, *[0] * pad] for chunk, pad in zip(chunks, padding, strict=True)]), cache=caches)
    for cache in caches:
        cache.finalize()


def need(caches: Caches) -> CacheNeed:
    """What a sequence's caches take, by those of one single token."""
    token_nbytes = fixed_nbytes = 0
    windows = []
    for cache in _leaves(caches):
        # A chunked cache grows in blocks beyond its chunk before it drops its front.
        window = getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", -KV_BLOCK_TOKENS) + KV_BLOCK_TOKENS
        room = _room(cache)
        if room is None:
            fixed_nbytes += cache.nbytes
        elif window:
            windows.append((int(window), cache.nbytes // room))
        else:
            token_nbytes += cache.nbytes // room
    return CacheNeed(token_nbytes, tuple(windows), fixed_nbytes)


def _leaves(caches: Sequence[Any]) -> list[Any]:
    """One by one, without the lists that hold several for a layer."""
    leaves = []
    for cache in caches:
        parts = getattr(cache, "caches", None)
        leaves += [cache] if parts is None else _leaves(parts)
    return leaves


def _room(cache: Any) -> int | None:
    """Tokens that a cache has room for now; None where it holds a state instead of tokens."""
    if hasattr(cache, "cache"):
        return None
    keys = getattr(cache, "keys", None)
    keys = keys[0] if isinstance(keys, (tuple, list)) else keys  # quantized ones have several arrays
    return int(keys.shape[-2]) if keys is not None else KV_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Source:
    """Where the caches of one sequence are: its own, or a row of a batch.

    Attributes:
        row: its number in the batch; None where the caches are its own.
        filled: tokens that the caches hold of it.
        tokens: how many of those (the first ones) are to be taken.
    """

    caches: Caches
    row: int | None
    filled: int
    tokens: int

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token, of caches that can be cut."""
        rows = 1 if self.row is None else self.caches[0].keys.shape[0]
        return sum(layer.nbytes // (layer.keys.shape[2] * rows) for layer in self.caches)

    def cut(self, blocks: Sequence[tuple[int, int]]) -> list[list[Any]]:
        """Copies of adjoining blocks (begin, end), lazy: for each the keys of all layers in one array, and the values.

        `can_cut` said yes to the caches.
        """
        begin, end = blocks[0][0], blocks[-1][1]
        first = self.caches[0]
        # A batch is aligned at its end.
        place = begin + (0 if self.row is None else first._idx - self.filled)
        part = (self.row or 0, slice(None), slice(place, place + end - begin))
        stacks = [mx.stack([layer.keys[part] for layer in self.caches])]
        stacks.append(mx.stack([layer.values[part] for layer in self.caches]))
        if len(blocks) == 1:
            return [stacks]
        return [[mx.contiguous(stack[:, :, a - begin : b - begin]) for stack in stacks] for a, b in blocks]

    def whole(self) -> Caches:
        """A copy that a sequence can go on with, lazy."""
        own = self.row is None
        caches = copied(self.caches) if own else [layer.extract(self.row) for layer in self.caches]
        for layer in _leaves(caches):
            if hasattr(layer, "cache"):
                # States are views of something larger (a batch, a chunk's activations), which they would keep alive.
                layer.cache = [state if state is None else state * 1 for state in layer.cache]
        return caches


def can_cut(caches: Caches) -> bool:
    """Whether every layer has a plain KV cache, all of one shape: such can be cut at any token."""
    if not are_plain(caches):
        return False
    return len({(layer.keys.shape, layer.values.shape, layer.keys.dtype) for layer in caches}) == 1


def are_plain(caches: Caches) -> bool:
    """Whether every layer has a plain KV cache and uses it (some models share one among layers)."""
    return all(type(layer).__name__ == PLAIN and type(layer).__module__ in LIBRARIES for layer in caches) and not any(
        layer.empty() for layer in caches
    )


def copied(caches: Caches) -> Caches:
    """A copy; bytes are copied only once either is written to."""
    return copy.deepcopy(caches)


def joined(model: Any, pieces: Sequence[list[Any]], tokens: int) -> Caches:
    """Caches for one sequence, filled with the first `tokens` of what `Source.cut` gave; lazy."""
    keys, values = (mx.concatenate(list(parts), axis=2)[:, :, :tokens] for parts in zip(*pieces, strict=True))
    caches = fresh(model)
    for number, layer in enumerate(caches):
        layer.keys, layer.values, layer.offset = keys[number : number + 1], values[number : number + 1], tokens
    return caches
