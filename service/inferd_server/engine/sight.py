"""A vision model behind the calls that the engine makes: ids and caches in, logits out, and pictures beside the ids.

mlx_vlm's models keep where their tokens stand (rope state) on themselves, one sequence at a time. Here that state is
told anew with each call, for every row, so that sequences can be mixed as in any other batch.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from inferd_server.core.media import PictureFeatures
from inferd_server.core.model import Clock

from .caches import Caches
from .layers import noted_layers
from .loading import MODEL_ERRORS
from .row import Row
from .vision_inputs import PictureTensors
from .vision_upstream import first_logprobs, make_prompt_cache, may_be_cut


@dataclass(slots=True)
class Seen:
    """What a model made of one prompt with pictures: what its prefill takes beside the ids, for the whole prompt.

    Attributes:
        rope_delta: how much farther than their number the tokens behind the prompt stand.
        may_be_cut: whether the prompt may be prefilled in pieces.
        steps: what is to be computed one after the other: the layers, and the end.
    """

    inputs: dict[str, Any]
    rope_delta: int
    may_be_cut: bool
    steps: deque[Any]
    all_steps: int = field(init=False)

    def __post_init__(self) -> None:
        self.all_steps = len(self.steps)

    def compute(self, seconds: float, clock: Clock) -> float:
        """Compute steps, one at least, until that time is over, and wait for them; the share of all that was done.

        Raises:
            Exception: whatever MLX raised.
        """
        before, end = len(self.steps), clock() + seconds
        while len(self.steps) == before or (self.steps and clock() < end):
            step = self.steps.popleft()
            # A layer inside a compiled function can't be computed by itself; the end tells whether all went well.
            with suppress(*MODEL_ERRORS) if self.steps else nullcontext():
                mx.eval(step)
        return (before - len(self.steps)) / self.all_steps


class SightedModel:
    """One loaded model of mlx_vlm's."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._language = model.language_model
        self._has_rope_state = hasattr(self._language, "_rope_deltas")

    def parameters(self) -> Any:
        """All weights, as MLX's modules tell them."""
        return self._model.parameters()

    def make_cache(self) -> Caches:
        """Empty caches for one sequence."""
        return list(make_prompt_cache(self._language))

    def __call__(self, ids: Any, cache: Caches, rope_deltas: Any = None, **inputs: Any) -> Any:
        """Logits [rows, tokens, vocabulary] for ids [rows, tokens]; lazy.

        Args:
            rope_deltas: [rows, 1]; None: no row has pictures.
            inputs: what `see` gave for the one row, for its whole prompt.
        """
        self._forget()
        if self._has_rope_state:
            inputs["rope_deltas"] = mx.zeros((ids.shape[0], 1), mx.int32) if rope_deltas is None else rope_deltas
        output = self._language(ids, cache=cache, **inputs)
        return getattr(output, "logits", output)

    def see(self, prompt_ids: Sequence[int], pictures: PictureFeatures) -> Seen:
        """Look at the pictures of a prompt, lazily: `Seen.compute` does it."""
        assert isinstance(pictures, PictureTensors), "serving carries around what vision_inputs made"
        ids = mx.array([list(prompt_ids)])
        values = {name: _array(value) for name, value in pictures.values.items()}
        pixels = values.pop("pixel_values", None)
        with noted_layers(self._model, apart_from=self._language) as layers:
            found = self._model.get_input_embeddings(ids, pixels, mask=mx.ones(ids.shape, mx.int32), **values)
        inputs = {**values, **{name: value for name, value in found.to_dict().items() if value is not None}}
        deltas = inputs.pop("rope_deltas", None)
        delta = 0 if deltas is None else int(deltas.reshape(-1)[0].item())
        return Seen(inputs, delta, may_be_cut(self._model, ids, inputs), deque([*layers, inputs["inputs_embeds"]]))

    def reference(self, prompt_ids: Sequence[int], pictures: PictureFeatures) -> Any:
        """Log probabilities [vocabulary] of a prompt's first new token, by mlx_vlm's own way through all of it."""
        assert isinstance(pictures, PictureTensors)
        self._forget()
        values = {name: _array(value) for name, value in pictures.values.items()}
        ids = mx.array([list(prompt_ids)])
        return first_logprobs(self._model, ids, values.pop("pixel_values", None), mx.ones(ids.shape, mx.int32), values)

    def fill(self, row: Row, caches: Caches, ids: Sequence[int]) -> None:
        """Run the next tokens of a row with pictures through the model, lazily."""
        begin = row.filled
        inputs: dict[str, Any] = {}
        if begin < len(row.request.prompt_ids):
            inputs = {**row.seen.inputs, "inputs_embeds": row.seen.inputs["inputs_embeds"][:, begin : begin + len(ids)]}
        self(mx.array([list(ids)]), caches, _column([row.rope_delta]), **inputs)

    def _forget(self) -> None:
        if self._has_rope_state:
            self._language._rope_deltas = self._language._position_ids = None

    def decode_inputs(self, rows: Sequence[Row]) -> dict[str, Any]:
        """What a decode step of these rows takes beside ids and caches."""
        return {"rope_deltas": _column([row.rope_delta for row in rows])} if self._has_rope_state else {}


def _column(values: list[int]) -> Any:
    return mx.array(values, dtype=mx.int32)[:, None]


def _array(value: Any) -> Any:
    if isinstance(value, list):
        return [_array(each) for each in value]
    return mx.array(value) if isinstance(value, np.ndarray) else value
