"""BERT and RoBERTa, their mean pooling and their classifiers in NumPy alone, written from the papers: what the engine's
vectors and scores are compared with."""

import json
import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def read_safetensors(file: Path) -> dict[str, Array]:
    """The float32 tensors of a file, in double precision."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            flat = np.frombuffer(content[begin:end], dtype="<f4").astype(np.float64)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


class NumpyBert:
    """One text at a time; no padding, no mask."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        read = read_safetensors(folder / "model.safetensors")
        self._weights = {re.sub(r"^(ro)?bert(a)?\.", "", name): array for name, array in read.items()}
        self._layers = config["num_hidden_layers"]
        self._heads = config["num_attention_heads"]
        self._epsilon = config.get("layer_norm_eps", 1e-12)
        self._is_roberta = "roberta" in config["model_type"]
        self._first_position = config["pad_token_id"] + 1 if self._is_roberta else 0

    def vector(self, ids: Sequence[int], *, normalize: bool = True) -> Array:
        """The mean of the last layer's states."""
        pooled = self.states(ids).mean(axis=0)
        return pooled / np.linalg.norm(pooled) if normalize else pooled

    def logit(self, ids: Sequence[int], second_from: int) -> float:
        """The classifier's one number; the second segment begins at `second_from`."""
        first = self.states(ids, second_from)[0]
        inner, outer = (
            ("classifier.dense", "classifier.out_proj") if self._is_roberta else ("pooler.dense", "classifier")
        )
        return float(self._linear(outer, np.tanh(self._linear(inner, first)))[0])

    def states(self, ids: Sequence[int], second_from: int | None = None) -> Array:
        """The last layer's state for each token; `second_from`: where the second segment begins, None for nowhere."""
        words = self._weights["embeddings.word_embeddings.weight"][list(ids)]
        positions = self._weights["embeddings.position_embeddings.weight"][self._first_position :][: len(ids)]
        segments = [int(second_from is not None and place >= second_from) for place in range(len(ids))]
        kinds = self._weights["embeddings.token_type_embeddings.weight"][segments]
        states = self._norm("embeddings.LayerNorm", words + positions + kinds)
        for layer in range(self._layers):
            states = self._layer(f"encoder.layer.{layer}", states)
        return states

    def _layer(self, name: str, states: Array) -> Array:
        parts = [self._heads_of(self._linear(f"{name}.attention.self.{part}", states)) for part in ("query", "key")]
        query, key = parts
        value = self._heads_of(self._linear(f"{name}.attention.self.value", states))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ value).transpose(1, 0, 2).reshape(states.shape)
        states = self._norm(
            f"{name}.attention.output.LayerNorm", states + self._linear(f"{name}.attention.output.dense", mixed)
        )
        inner = _gelu(self._linear(f"{name}.intermediate.dense", states))
        return self._norm(f"{name}.output.LayerNorm", states + self._linear(f"{name}.output.dense", inner))

    def _heads_of(self, states: Array) -> Array:
        return states.reshape(len(states), self._heads, -1).transpose(1, 0, 2)

    def _linear(self, name: str, states: Array) -> Array:
        return states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, states: Array) -> Array:
        centred = states - states.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._epsilon)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(states: Array) -> Array:
    erf = np.vectorize(math.erf)
    return states * 0.5 * (1 + erf(states / math.sqrt(2)))
