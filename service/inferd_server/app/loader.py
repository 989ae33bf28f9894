"""How the registry's models come to be: an engine on a thread of its own, wrapped in its scheduler."""

import asyncio
from collections.abc import Callable

from inferd_server.core.errors import InferdError
from inferd_server.core.model import CheckedFiles, Loading, ModelEntry, Resident
from inferd_server.core.observer import UNOBSERVED, Observer
from inferd_server.engine import device
from inferd_server.engine.checks import check_model_folder
from inferd_server.scheduler.memory import WorkMemory
from inferd_server.scheduler.scheduler import Scheduler
from inferd_server.scheduler.threads import Threads

from .openers import OpenEngine


class EngineLoader:
    """Opens an engine on a thread of its own, wrapped in its scheduler; all of them share one memory for their work."""

    def __init__(self, open_engine: OpenEngine, memory: WorkMemory) -> None:
        self._open_engine = open_engine
        self._memory = memory
        self.observer: Observer = UNOBSERVED
        self.look_again: Callable[[ModelEntry], CheckedFiles] = CheckedFiles
        self._threads = Threads(device.end_thread)

    async def check(self, entry: ModelEntry) -> CheckedFiles:
        """See core.model.Loader. Off the loop."""
        checked = await asyncio.to_thread(self.look_again, entry)
        await asyncio.to_thread(check_model_folder, checked.entry.engine)
        return checked

    async def load(
        self, entry: ModelEntry, generation: int, loading: Loading, on_death: Callable[[InferdError], None]
    ) -> Resident:
        """See core.model.Loader."""
        return await Scheduler.open(
            entry.engine,
            loading,
            self._open_engine,
            on_death,
            threads=self._threads,
            memory=self._memory,
            observer=self.observer,
        )

    async def close(self) -> None:
        """End the threads, once every engine has ended."""
        await asyncio.to_thread(self._threads.close)
