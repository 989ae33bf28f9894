"""Work that goes on beside the requests, for as long as the server serves."""

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger("inferd.app")


class Background:
    """Tasks of the server's own; one that fails is told in the log and ends nothing else."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Let it run until it ends, or until `end`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self.settle)

    def settle(self, task: "asyncio.Task[None]") -> None:
        """For a task that is done: tell why, if it failed."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", exc_info=error)

    async def end(self) -> None:
        """Cancel what still runs, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
