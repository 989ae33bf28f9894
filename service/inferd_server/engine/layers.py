"""A model call that is computed layer by layer: lazy arrays make one graph, which may be computed up to any place.

What is computed is the same graph, so nothing comes out differently, whatever the family and however many pictures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn


@contextmanager
def noted_layers(model: Any, apart_from: Any) -> Iterator[list[Any]]:
    """What layers give that are called meanwhile, in their order; lazy.

    Layers are modules in a list of a module (a tower's blocks). They are exchanged for the time of the call: the model
    must not be used otherwise.

    Args:
        apart_from: a part of the model whose layers are not looked at.
    """
    outputs: list[Any] = []
    kept = [(layers, list(layers)) for layers in _lists_of_layers(model, apart_from)]
    for layers, original in kept:
        layers[:] = [_Noted(layer, outputs) for layer in original]
    try:
        yield outputs
    finally:
        for layers, original in kept:
            layers[:] = original


class _Noted:
    """A layer that notes its output, the first array where it gives several."""

    def __init__(self, layer: Any, outputs: list[Any]) -> None:
        self._layer = layer
        self._outputs = outputs

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._layer(*arguments, **options)
        first = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(first, mx.array):
            self._outputs.append(first)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _lists_of_layers(model: Any, apart_from: Any) -> list[list[Any]]:
    others = {id(module) for module in apart_from.modules()}
    modules = [module for module in model.modules() if id(module) not in others]
    return [
        value
        for module in modules
        for value in module.values()
        if isinstance(value, list) and value and all(isinstance(each, nn.Module) for each in value)
    ]
