"""Registry as the rpc room sees it: entries and states set by the test, calls noted."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferd_server.core.errors import InferdError, model_not_found
from inferd_server.core.model import Capability, EngineSettings, ModelEntry, ModelState
from inferd_server.registry.instances import Counters
from inferd_server.registry.registry import (
    LoadOutcome,
    MemorySnapshot,
    ModelSnapshot,
    RegistrySnapshot,
    RegistryStatistics,
    UnloadOutcome,
)


def model_snapshot(of: ModelEntry, **facts: Any) -> ModelSnapshot:
    """An unloaded model."""
    stated = {"state": ModelState.UNLOADED, "state_time": 1_700_000_000.25, "estimated_nbytes": 1000, **facts}
    return ModelSnapshot(of, **stated)


def memory_snapshot(**facts: int) -> MemorySnapshot:
    """A budget of 10,000 bytes, unused."""
    names = ("used_nbytes", "reserved_nbytes", "ceiling_nbytes", "active_nbytes")
    return MemorySnapshot(**{"limit_nbytes": 10_000, **dict.fromkeys(names, 0), **facts})


def entry(name: str, *aliases: str, **facts: Any) -> ModelEntry:
    """A small text model."""
    stated = {
        "revision": "r1",
        "architecture": "llama",
        "capabilities": frozenset({Capability.GENERATE, Capability.CHAT}),
        "context_length": 128,
        "vocabulary_size": 1000,
        **facts,
    }
    return ModelEntry(name, EngineSettings(name, Path("/models") / name), aliases=aliases, **stated)


class FakeRegistry:
    """Two models unless told otherwise. `calls` notes loads and unloads; `error` is raised by them if set."""

    def __init__(self, *entries: ModelEntry) -> None:
        known = entries or (entry("big"), entry("tiny", "small"))
        self.models = {e.name: model_snapshot(e) for e in known}
        self.memory = memory_snapshot()
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.error: InferdError | None = None
        self.load_forever = False
        self.subscribers: list[Callable[[ModelSnapshot], None]] = []

    def set(self, name: str, **changes: Any) -> None:
        """Change a model and tell the subscribers."""
        model = self.models[name] = replace(self.models[name], **changes)
        for subscriber in list(self.subscribers):
            subscriber(model)

    def resolve(self, name: str) -> ModelEntry:
        for model in self.models.values():
            if name == model.entry.name or name in model.entry.aliases:
                return model.entry
        raise model_not_found(name, self.models)

    def names_of(self, name: str) -> tuple[str, ...]:
        for model in self.models.values():
            if name == model.entry.name or name in model.entry.aliases:
                return (model.entry.name, *model.entry.aliases)
        return (name,)

    def model(self, name: str) -> ModelSnapshot:
        return self.models[self.resolve(name).name]

    def snapshot(self) -> RegistrySnapshot:
        return RegistrySnapshot(tuple(self.models[name] for name in sorted(self.models)), self.memory)

    def statistics(self) -> RegistryStatistics:
        running = sum(model.running for model in self.models.values())
        states = Counter(model.state for model in self.models.values())
        return RegistryStatistics(self.memory, 0, running, states, Counters())

    def subscribe(self, callback: Callable[[ModelSnapshot], None]) -> Callable[[], None]:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    async def load(self, name: str, policy: object = None, **options: Any) -> LoadOutcome:
        self.calls.append(("load", name, {"policy": policy, **options}))
        if self.error is not None:
            raise self.error
        if self.load_forever:
            await asyncio.Event().wait()
        self.set(name, state=ModelState.LOADED, generation=1, charged_nbytes=1000)
        return LoadOutcome(self.models[name], self.memory, evicted=("big",), load_seconds=1.5)

    async def unload(self, name: str, mode: object, drain_timeout_seconds: float | None) -> UnloadOutcome:
        self.calls.append(("unload", name, {"mode": mode, "drain_timeout_seconds": drain_timeout_seconds}))
        if self.error is not None:
            raise self.error
        self.set(name, state=ModelState.UNLOADED, charged_nbytes=0)
        return UnloadOutcome(self.models[name], freed_nbytes=1000)
