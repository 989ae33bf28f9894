"""Looking at the registry: snapshots, figures for metrics, and those who watch. Nothing here touches recency."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from inferd_server.core.model import Clock, ModelState

from .effects import Changed
from .engines import Engines
from .instances import Failure, Model
from .machine import Machine
from .snapshot import MemorySnapshot, ModelSnapshot, RegistrySnapshot, RegistryStatistics

log = logging.getLogger(__name__)

Watcher = Callable[[ModelSnapshot], None]


class Observer:
    """Shows the machine and the engines in unix time."""

    def __init__(
        self, machine: Machine, engines: Engines, clock: Clock, wall_clock: Clock, active_nbytes: Callable[[], int]
    ) -> None:
        self._machine = machine
        self._engines = engines
        self._active_nbytes = active_nbytes
        self._start = clock()
        self._epoch = wall_clock() - self._start  # added to the machine's times
        self._watchers: dict[object, Watcher] = {}

    def model(self, model: Model) -> ModelSnapshot:
        """One model now."""
        instances = model.instances()
        figures = [self._engines.statistics(instance.key) for instance in instances]
        current, failure = model.current, model.failure
        return ModelSnapshot(
            entry=model.served_entry,
            state=model.state,
            state_time=self._unix(current.since or self._start),
            load_progress=self._load_progress(model),
            last_error=None if failure is None else self._last_error(failure),
            generation=current.generation,
            charged_nbytes=sum(map(self._machine.residency.nbytes, instances)),
            weights_nbytes=current.weights_nbytes,
            estimated_nbytes=model.entry.estimated_bytes,
            cache_nbytes=sum(figure.cache_nbytes for figure in figures),
            pinned=model.pinned,
            running=sum(figure.running for figure in figures),
            waiting=self._machine.queue.waiting(model.name) + sum(figure.waiting for figure in figures),
            last_used_time=self._unix(current.last_used_at) if current.last_used_at else 0.0,
            load_seconds=current.load_seconds,
            step_age_seconds=max(figure.step_age_seconds for figure in figures),
        )

    def _load_progress(self, model: Model) -> float:
        """Of the load under way (a reload's, beside the loaded one), else 1 for what is loaded."""
        if model.successor is None and model.state is ModelState.LOADED:
            return 1.0
        return self._engines.progress((model.successor or model.current).key)

    def memory(self) -> MemorySnapshot:
        """The budget now."""
        residency = self._machine.residency
        return MemorySnapshot(
            limit_nbytes=residency.ledger.limit_nbytes,
            used_nbytes=residency.ledger.used_nbytes,
            reserved_nbytes=residency.ledger.reserved_nbytes,
            ceiling_nbytes=residency.limits.ceiling_nbytes,
            active_nbytes=self._active_nbytes(),
        )

    def everything(self) -> RegistrySnapshot:
        """Every model by name, and the budget, at one moment."""
        models = sorted(self._machine.residency.models.values(), key=lambda model: model.name)
        return RegistrySnapshot(tuple(map(self.model, models)), self.memory())

    def statistics(self) -> RegistryStatistics:
        """Frozen figures for metrics."""
        residency = self._machine.residency
        return RegistryStatistics(
            memory=self.memory(),
            waiting=len(self._machine.queue),
            leases=sum(len(instance.leases) for instance in residency.open.values()),
            states=Counter(model.state for model in residency.models.values()),
            counters=replace(residency.counters),
        )

    # --- watchers ------------------------------------------------------------------------------------------------

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Tell `watcher` each change of state and progress of loads; returns what ends it."""
        key = object()
        self._watchers[key] = watcher

        def unsubscribe() -> None:
            self._watchers.pop(key, None)

        return unsubscribe

    def report(self, change: Changed) -> None:
        """Tell a change of state as it was, whatever has happened since."""
        if not self._watchers:
            return
        since = self._unix(change.state_since)
        model = self._machine.residency.models.get(change.name)
        if change.removed is not None:
            self._publish(ModelSnapshot(change.removed, change.state, since, removed=True))
        elif model is not None:
            self._publish(replace(self.model(model), state=change.state, state_time=since))

    def report_progress(self, name: str) -> None:
        """Tell how far a load is."""
        model = self._machine.residency.models.get(name)
        if model is not None and self._watchers:
            self._publish(self.model(model))

    def _publish(self, snapshot: ModelSnapshot) -> None:
        for watcher in list(self._watchers.values()):
            try:
                watcher(snapshot)
            except Exception:  # the effect runner's wall: one watcher's failure is not the registry's
                log.exception("a watcher failed", extra={"model": snapshot.entry.name})

    def _last_error(self, failure: Failure) -> tuple[str, str, float]:
        return str(failure.error.reason), failure.error.message, self._unix(failure.at)

    def _unix(self, moment: float) -> float:
        return moment + self._epoch
