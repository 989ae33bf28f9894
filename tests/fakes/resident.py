"""A loader and residents without an engine: loads end when the test says so, or at once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from inferd_server.core.errors import InferdError
from inferd_server.core.model import (
    CheckedFiles,
    EngineSettings,
    LoadAbandoned,
    Loading,
    ModelEntry,
    ResidentStatistics,
)

MIB = 1 << 20


def entry(name: str, mib: int = 1, **facts: object) -> ModelEntry:
    """A configured model of so many MiB."""
    settings = EngineSettings(name, Path("/nowhere") / name)
    return ModelEntry(name, settings, estimated_bytes=mib * MIB, **facts)  # type: ignore[arg-type]


class FakeResident:
    """Notes what it is told. `close_gate`: closing waits until it is set."""

    def __init__(
        self, name: str, generation: int, weights_nbytes: int, on_death: Callable[[InferdError], None]
    ) -> None:
        self.name = name
        self.generation = generation
        self.weights_nbytes = weights_nbytes
        self.die = on_death
        self.interrupted_by: str | None = None
        self.aborted_with: InferdError | None = None
        self.close_calls = 0
        self.close_error: Exception | None = None
        self.close_gate = asyncio.Event()
        self.close_gate.set()
        self.on_interrupt: Callable[[], None] | None = None
        self.on_abort: Callable[[], None] | None = None

    def statistics(self) -> ResidentStatistics:
        """Nothing runs here."""
        return ResidentStatistics()

    def interrupt(self, by_model: str) -> None:
        """Note the rival."""
        self.interrupted_by = by_model
        if self.on_interrupt is not None:
            self.on_interrupt()

    def resume(self) -> None:
        """Forget the rival."""
        self.interrupted_by = None

    def abort(self, error: InferdError) -> None:
        """Note the error."""
        self.aborted_with = error
        if self.on_abort is not None:
            self.on_abort()

    async def close(self) -> None:
        """End once the gate is open."""
        self.close_calls += 1
        await self.close_gate.wait()
        if self.close_error is not None:
            raise self.close_error


class FakeLoader:
    """Loads at once, unless `hold(name)`; fails with `check_errors[name]` or `load_errors[name]`."""

    def __init__(self) -> None:
        self.check_errors: dict[str, Exception] = {}
        self.load_errors: dict[str, Exception] = {}
        self.weights: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.fresh: dict[str, ModelEntry] = {}  # what the files say at a check, where that is new
        self.checks: list[str] = []
        self.loads: list[str] = []
        self.residents: dict[str, FakeResident] = {}
        self.loadings: dict[str, Loading] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> asyncio.Event:
        """Loads of `name` wait for the event returned."""
        self._gates[name] = asyncio.Event()
        return self._gates[name]

    async def check(self, entry: ModelEntry) -> CheckedFiles:
        """See core.model.Loader."""
        self.checks.append(entry.name)
        await asyncio.sleep(0)
        if entry.name in self.check_errors:
            raise self.check_errors[entry.name]
        return CheckedFiles(self.fresh.get(entry.name, entry), self.files.get(entry.name, 0))

    async def load(
        self, entry: ModelEntry, generation: int, loading: Loading, on_death: Callable[[InferdError], None]
    ) -> FakeResident:
        """See core.model.Loader."""
        self.loads.append(entry.name)
        self.loadings[entry.name] = loading
        gate = self._gates.get(entry.name)
        while gate is not None and not gate.is_set():
            if loading.abandoned:
                raise LoadAbandoned
            await asyncio.sleep(0.001)
        if entry.name in self.load_errors:
            raise self.load_errors[entry.name]
        weights = self.weights.get(entry.name, entry.estimated_bytes)
        resident = self.residents[entry.name] = FakeResident(entry.name, generation, weights, on_death)
        return resident
