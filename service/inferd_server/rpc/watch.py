"""What one watcher of the registry still has to be told: every state, progress at most ten times a second, heartbeats.

Bounded however slow the watcher reads: of progress only the latest of each model is kept, and a watcher that lags by
more than MAX_PENDING changes of state is ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import Clock
from inferd_server.registry.registry import ModelSnapshot

PROGRESS_SECONDS = 0.1
HEARTBEAT_SECONDS = 15.0
MAX_PENDING = 1024


class Watch:
    """One watcher's pending changes. `offer` is called by the registry, `next` by the watcher's stream."""

    def __init__(
        self, names: frozenset[str], clock: Clock, may_see: Callable[[ModelSnapshot], bool] = lambda _: True
    ) -> None:
        """Watch the models called `names` (canonical), or all if empty, as far as the watcher `may_see` them."""
        self._names = names
        self._clock = clock
        self._may_see = may_see
        self._changes: deque[ModelSnapshot] = deque()
        self._progress: dict[str, ModelSnapshot] = {}
        self._told_at: dict[str, float] = {}
        self._last: dict[str, tuple[object, ...]] = {}
        self._silent_since = clock()
        self._news = asyncio.Event()
        self._overrun = False

    def watches(self, model: ModelSnapshot) -> bool:
        """Whether the model is among the watched."""
        return (not self._names or model.entry.name in self._names) and self._may_see(model)

    def begin(self, models: tuple[ModelSnapshot, ...]) -> None:
        """The watcher is told of `models` as they are now."""
        for model in models:
            self._last[model.entry.name] = _state_of(model)

    def offer(self, model: ModelSnapshot) -> None:
        """A model's news. Never blocks."""
        name = model.entry.name
        if not self.watches(model) or self._overrun:
            return
        state = _state_of(model)
        if self._last.get(name) == state:
            self._progress[name] = model
        else:
            self._last[name] = state
            self._progress.pop(name, None)
            self._changes.append(model)
            self._overrun = len(self._changes) > MAX_PENDING
        self._news.set()

    async def next(self) -> ModelSnapshot | None:
        """The next model to tell, or None for a heartbeat.

        Raises:
            InferdError: SLOW_CONSUMER, after an overrun.
        """
        while True:
            now = self._clock()
            if self._overrun:
                raise _overrun()
            model = self._take(now)
            if model is not None or now - self._silent_since >= HEARTBEAT_SECONDS:
                self._silent_since = now
                return model
            self._news.clear()
            await self._wait(self._due(now) - now)

    def _take(self, now: float) -> ModelSnapshot | None:
        if self._changes:
            return self._tell(self._changes.popleft(), now)
        for name, model in self._progress.items():
            if now >= self._progress_due(name):
                del self._progress[name]
                return self._tell(model, now)
        return None

    def _tell(self, model: ModelSnapshot, now: float) -> ModelSnapshot:
        self._told_at[model.entry.name] = now
        return model

    def _progress_due(self, name: str) -> float:
        return self._told_at.get(name, -PROGRESS_SECONDS) + PROGRESS_SECONDS

    def _due(self, now: float) -> float:
        return min([self._silent_since + HEARTBEAT_SECONDS, *map(self._progress_due, self._progress)], default=now)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass


def _state_of(model: ModelSnapshot) -> tuple[object, ...]:
    """What makes a change that every watcher must see; the rest is progress."""
    return (model.state, model.state_time, model.generation, model.pinned, model.last_error, model.removed)


def _overrun() -> InferdError:
    return InferdError(
        Reason.SLOW_CONSUMER,
        f"the watcher lags by more than {MAX_PENDING} changes of state",
        facts={"limit_changes": MAX_PENDING},
    )
