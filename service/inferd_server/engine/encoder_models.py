"""What an encoder's step calls: token ids into one row of numbers for each text."""

from typing import Any, Protocol

import mlx.core as mx

from .encoder_upstream import pool_by_config


class EncoderModel(Protocol):
    """A model in memory, called on the thread that owns it."""

    @property
    def itemsize(self) -> int:
        """Bytes of one activation."""

    def __call__(self, ids: mx.array, attention_mask: mx.array, segments: mx.array) -> mx.array:
        """A row for each text.

        Args:
            ids: a row for each text, padded at its end.
            attention_mask: 1 for a token, 0 for padding.
            segments: 0 for tokens of a text's first part, 1 for those of its second.
        """


class PooledModel:
    """An embedder: a text's vector is pooled from the last layer's states."""

    def __init__(self, model: Any, pooling: str) -> None:
        self._model = model
        self._pooling = {"pooling_mode": pooling}
        # What the model itself would pool with: only its check is used, since it scales every vector to length 1.
        model.pooling_config = self._pooling

    @property
    def itemsize(self) -> int:
        """See EncoderModel."""
        return self._hidden(mx.array([[0]]), mx.array([[1]])).dtype.size

    def __call__(self, ids: mx.array, attention_mask: mx.array, segments: mx.array) -> mx.array:
        """See EncoderModel. No embedder here knows segments."""
        pooled: mx.array = pool_by_config(self._hidden(ids, attention_mask), attention_mask, self._pooling)
        for dense in getattr(self._model, "dense", ()):
            pooled = dense(pooled)
        return pooled

    def _hidden(self, ids: mx.array, attention_mask: mx.array) -> mx.array:
        hidden: mx.array = self._model(ids, attention_mask=attention_mask).last_hidden_state
        return hidden


class ScoringModel:
    """A reranker: a pair's one number is its classifier's logit."""

    def __init__(self, model: Any, *, has_segments: bool) -> None:
        """`has_segments`: whether the model has a vector for a second segment; one without must never see its id."""
        self._model = model
        self._has_segments = has_segments

    @property
    def itemsize(self) -> int:
        """See EncoderModel."""
        one = mx.array([[0]])
        return self(one, mx.array([[1]]), one).dtype.size

    def __call__(self, ids: mx.array, attention_mask: mx.array, segments: mx.array) -> mx.array:
        """See EncoderModel."""
        kinds = {"token_type_ids": segments} if self._has_segments else {}
        logits: mx.array = self._model(ids, attention_mask=attention_mask, **kinds).logits
        return logits
