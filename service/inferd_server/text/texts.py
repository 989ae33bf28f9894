"""Tokenizers, and what else is by model: loaded once, off the event loop, and a bounded number of them kept."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from inferd_server.core.model import ModelEntry

from .tokenizer import Tokenizer

Loaded = TypeVar("Loaded")
_Key = tuple[str, Path, str, bool]


def load_tokenizer(entry: ModelEntry) -> Tokenizer:
    """Load an entry's tokenizer; blocking. Raises InferdError MODEL_CORRUPT or MODEL_UNSUPPORTED."""
    engine = entry.engine
    return Tokenizer.load(engine.path, trust_remote_code=engine.trust_remote_code, name=entry.name)


class PerModel(Generic[Loaded]):
    """Something that each model's folder holds one of. Every method runs on the event loop.

    A load belongs to no caller: it goes on if one leaves, and all who wait share it. A failed load is not
    remembered; the next caller tries again.
    """

    def __init__(self, load: Callable[[ModelEntry], Loaded], *, max_kept: int = 64) -> None:
        """`load` blocks."""
        self._load = load
        self._max_kept = max_kept
        self._kept: OrderedDict[_Key, Loaded] = OrderedDict()  # the least recently used first
        self._loading: dict[_Key, asyncio.Task[Loaded]] = {}

    async def get(self, entry: ModelEntry) -> Loaded:
        """The entry's own, loaded if need be.

        Raises:
            InferdError: MODEL_CORRUPT or MODEL_UNSUPPORTED.
        """
        key = (entry.name, entry.engine.path, entry.revision, entry.engine.trust_remote_code)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        return await asyncio.shield(self._loading.get(key) or self._start(key, entry))

    def forget(self, name: str) -> None:
        """Drop what is the model `name`'s; loads under way answer those who wait and are not kept."""
        for kept in [key for key in self._kept if key[0] == name]:
            del self._kept[kept]
        for loading in [key for key in self._loading if key[0] == name]:
            del self._loading[loading]

    def _start(self, key: _Key, entry: ModelEntry) -> asyncio.Task[Loaded]:
        task = asyncio.create_task(asyncio.to_thread(self._load, entry), name=f"loading for {entry.name}")
        self._loading[key] = task
        task.add_done_callback(lambda done: self._settle(key, done))
        return task

    def _settle(self, key: _Key, task: asyncio.Task[Loaded]) -> None:
        # Asking for the exception also tells asyncio that it was seen, should all who waited have left.
        failed = task.cancelled() or task.exception() is not None
        if self._loading.get(key) is not task:
            return
        del self._loading[key]
        if failed:
            return
        self._kept[key] = task.result()
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)


class Texts(PerModel[Tokenizer]):
    """The tokenizers of all models."""

    def __init__(self, *, max_kept: int = 64, load: Callable[[ModelEntry], Tokenizer] = load_tokenizer) -> None:
        super().__init__(load, max_kept=max_kept)
