"""What a watched server runs beside its rooms: the metrics, their port, and the look at the event loop."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from inferd_server.registry.registry import Registry

from .exposition import Exposition
from .metrics import Metrics
from .picture import Build

__all__ = ["Build", "Monitoring"]

log = logging.getLogger("inferd.telemetry")


class Monitoring:
    """Serves metrics at `listen` (HOST:PORT) while its block runs."""

    def __init__(
        self,
        listen: str,
        registry: Registry,
        build: Build,
        is_ready: Callable[[], bool],
        process_nbytes: Callable[[], int] = lambda: 0,
        certificate_end: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.metrics = Metrics(registry, build, is_ready, process_nbytes, certificate_end)
        self._listen = listen
        self._exposition = Exposition(self.metrics.render)
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Open the port.

        Raises:
            OSError: it can't be bound; the message names it.
        """
        address = await self._exposition.start(self._listen)
        log.info("metrics at http://%s/metrics", address)
        self._watch = asyncio.create_task(self.metrics.watch_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._exposition.close()
        self.metrics.close()
