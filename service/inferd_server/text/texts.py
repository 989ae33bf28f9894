"""Tokenizers by model: loaded once, off the event loop, and a bounded number of them kept."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from inferd_server.core.model import ModelEntry

from .tokenizer import Tokenizer

_Key = tuple[str, Path, str, bool]


def load_tokenizer(entry: ModelEntry) -> Tokenizer:
    """Load an entry's tokenizer; blocking. Raises InferdError MODEL_CORRUPT or MODEL_UNSUPPORTED."""
    engine = entry.engine
    return Tokenizer.load(engine.path, trust_remote_code=engine.trust_remote_code, name=entry.name)


class Texts:
    """The tokenizers of all models. Every method runs on the event loop.

    A load belongs to no caller: it goes on if one leaves, and all who wait share it. A failed load is not
    remembered; the next caller tries again.
    """

    def __init__(self, *, max_kept: int = 64, load: Callable[[ModelEntry], Tokenizer] = load_tokenizer) -> None:
        self._load = load
        self._max_kept = max_kept
        self._kept: OrderedDict[_Key, Tokenizer] = OrderedDict()  # the least recently used first
        self._loading: dict[_Key, asyncio.Task[Tokenizer]] = {}

    async def get(self, entry: ModelEntry) -> Tokenizer:
        """The entry's tokenizer, loaded if need be.

        Raises:
            InferdError: MODEL_CORRUPT or MODEL_UNSUPPORTED.
        """
        key = (entry.name, entry.engine.path, entry.revision, entry.engine.trust_remote_code)
        tokenizer = self._kept.get(key)
        if tokenizer is not None:
            self._kept.move_to_end(key)
            return tokenizer
        return await asyncio.shield(self._loading.get(key) or self._start(key, entry))

    def forget(self, name: str) -> None:
        """Drop every tokenizer of the model `name`; loads under way answer those who wait and are not kept."""
        for kept in [key for key in self._kept if key[0] == name]:
            del self._kept[kept]
        for loading in [key for key in self._loading if key[0] == name]:
            del self._loading[loading]

    def _start(self, key: _Key, entry: ModelEntry) -> asyncio.Task[Tokenizer]:
        task = asyncio.create_task(asyncio.to_thread(self._load, entry), name=f"tokenizer {entry.name}")
        self._loading[key] = task
        task.add_done_callback(lambda done: self._settle(key, done))
        return task

    def _settle(self, key: _Key, task: asyncio.Task[Tokenizer]) -> None:
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
