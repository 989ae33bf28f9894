"""Engines in the hands of the shell: loads under way, residents, and the tasks that open and close them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from inferd_server.core.errors import InferdError, engine_failed, load_timeout, model_load_failed
from inferd_server.core.model import (
    CheckedFiles,
    Clock,
    LoadAbandoned,
    Loader,
    ModelEntry,
    Resident,
    ResidentStatistics,
)

from .inputs import CheckFinished, Died, Input, LoadFailed, LoadFinished, UnloadFailed, UnloadFinished
from .ledger import InstanceKey

log = logging.getLogger("inferd.registry")

PROGRESS_SECONDS = 0.1
"""Progress of a load is told at most so often."""


class LoadUnderWay:
    """The `Loading` of one load: its progress, and whether it is still wanted. Used from any thread."""

    def __init__(self, tell: Callable[[], None], clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._tell = tell
        self._clock = clock
        self._told_at = -PROGRESS_SECONDS
        self.fraction = 0.0
        self.abandoned = False

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        """Note how far the load is; those who watch hear of it now and then."""
        self.fraction = min(1.0, done_nbytes / total_nbytes) if total_nbytes > 0 else 0.0
        now = self._clock()
        if now - self._told_at < PROGRESS_SECONDS and done_nbytes < total_nbytes:
            return
        self._told_at = now
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)


class Engines:
    """Carries out the slow effects as tasks it owns; each comes back as exactly one input."""

    def __init__(
        self,
        loader: Loader,
        tell: Callable[[Input], None],
        tell_progress: Callable[[str], None],
        clock: Clock,
        active_nbytes: Callable[[], int],
    ) -> None:
        self._loader = loader
        self._tell = tell
        self._tell_progress = tell_progress
        self._clock = clock
        self._active_nbytes = active_nbytes
        self._loads: dict[InstanceKey, LoadUnderWay] = {}
        self._residents: dict[InstanceKey, Resident] = {}
        self._early_deaths: dict[InstanceKey, InferdError] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __getitem__(self, key: InstanceKey) -> Resident:
        return self._residents[key]

    def progress(self, key: InstanceKey) -> float:
        """How far a load is, in [0, 1]; 0 if there is none."""
        load = self._loads.get(key)
        return 0.0 if load is None else load.fraction

    def statistics(self, key: InstanceKey) -> ResidentStatistics:
        """What a resident reports; nothing if there is none."""
        resident = self._residents.get(key)
        return ResidentStatistics() if resident is None else resident.statistics()

    def check(self, entry: ModelEntry, number: int, timeout_seconds: float) -> None:
        """Start the cheap check of a model's files."""
        self._spawn(self._check(entry, number, timeout_seconds))

    def load(self, entry: ModelEntry, generation: int) -> None:
        """Start a load."""
        key = (entry.name, generation)
        load = self._loads[key] = LoadUnderWay(lambda: self._tell_progress(entry.name), self._clock)
        self._spawn(self._load(entry, key, load))

    def abandon(self, key: InstanceKey) -> None:
        """Ask a load to give up."""
        self._loads[key].abandoned = True

    def close(self, key: InstanceKey) -> None:
        """Start to end an engine."""
        self._spawn(self._close(key, self._residents[key]))

    async def join(self) -> None:
        """Wait for every task; they go on if the caller leaves."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, entry: ModelEntry, number: int, timeout_seconds: float) -> None:
        error: InferdError | None = None
        checked: CheckedFiles | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                checked = await self._loader.check(entry)
        except InferdError as failure:
            error = failure
        except TimeoutError:
            error = load_timeout(entry.name, timeout_seconds)
        except Exception:  # noqa: BLE001 - the effect runner's wall: an unknown failure marks the model failed
            error = self._unknown_failure("check", entry.name)
        if checked is None:
            self._tell(CheckFinished(entry.name, number, error))
        else:
            self._tell(CheckFinished(entry.name, number, None, checked.weights_nbytes or None, checked.entry))

    async def _load(self, entry: ModelEntry, key: InstanceKey, load: LoadUnderWay) -> None:
        outcome: LoadFinished | LoadFailed
        try:
            resident = await self._loader.load(entry, key[1], load, lambda error: self._note_death(key, error))
            outcome = LoadFinished(*key, resident.weights_nbytes)
            self._residents[key] = resident
        except LoadAbandoned:
            outcome = LoadFailed(*key)
        except InferdError as error:
            outcome = LoadFailed(*key, error)
        except Exception:  # noqa: BLE001 - the effect runner's wall
            outcome = LoadFailed(*key, self._unknown_failure("load", entry.name))
        finally:
            del self._loads[key]
        self._tell(outcome)
        if key in self._early_deaths:
            self._tell(Died(*key, self._early_deaths.pop(key)))

    def _note_death(self, key: InstanceKey, error: InferdError) -> None:
        """An engine died; one that dies before its load was told is told of after it."""
        if key in self._loads:
            self._early_deaths[key] = error
        else:
            self._tell(Died(*key, error))

    async def _close(self, key: InstanceKey, resident: Resident) -> None:
        statistics = resident.statistics()
        most_nbytes = resident.weights_nbytes + statistics.cache_nbytes
        before_nbytes = self._active_nbytes()
        try:
            await resident.close()
        except Exception:  # the effect runner's wall: the end is not proved, the bytes stay charged
            log.exception("closing an engine failed", extra={"model": key[0], "generation": key[1]})
            self._tell(UnloadFailed(*key, engine_failed(key[0])))
            return
        finally:
            del self._residents[key]
        freed_nbytes = resident.weights_nbytes
        if before_nbytes > 0:
            freed_nbytes = min(most_nbytes, max(0, before_nbytes - self._active_nbytes()))
        del resident
        self._tell(UnloadFinished(*key, freed_nbytes))

    def _unknown_failure(self, what: str, name: str) -> InferdError:
        log.exception("a %s failed", what, extra={"model": name})
        return model_load_failed(name, f"the {what} of model {name!r} failed; the server's log has the cause")
