"""One server from its start to its end."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from inferd_server.config import Config
from inferd_server.engine.awake import kept_awake
from inferd_server.serving.lifecycle import Phase
from inferd_server.telemetry.loop_watch import LoopWatch

from .background import Background
from .openers import OpenEngine, open_engine
from .reloading import Reloads
from .rooms import Rooms
from .shutdown import shut_down
from .signals import signals

log = logging.getLogger("inferd.app")


class App:
    """One server: its rooms, and their order of starting and stopping."""

    def __init__(self, config: Config, open_engine: OpenEngine = open_engine, work_limit: int | None = None) -> None:
        self._config = config
        self._rooms = Rooms(config, open_engine, work_limit)
        self._background = Background()
        self._reloads = Reloads(config, self._rooms, self._background)
        self._stop = asyncio.Event()

    async def run(self, announce: Callable[[str], None]) -> int:
        """Serve until a signal; returns the exit code."""
        rooms = self._rooms
        with kept_awake() if self._config.server.prevent_sleep else contextlib.nullcontext():
            async with rooms.monitoring or contextlib.nullcontext(), rooms.tracing or contextlib.nullcontext():
                return await self._serve(announce)

    async def _serve(self, announce: Callable[[str], None]) -> int:
        with signals(self._stop, self._reloads.ask), LoopWatch():
            address = await self._rooms.server.start()
            self._log_opening()
            announce(f"listening on {address}")
            self._background.begin(self._preload())
            self._reloads.begin()
            await self._stop.wait()
            return await shut_down(self._rooms, self._config, self._background)

    def _log_opening(self) -> None:
        for warning in self._config.warnings:
            log.warning("%s", warning)
        if self._rooms.server.probe_address:
            log.info("health checks at %s", self._rooms.server.probe_address)

    async def _preload(self) -> None:
        await self._rooms.registry.preload()
        lifecycle = self._rooms.lifecycle
        if lifecycle.phase is Phase.STARTING:
            lifecycle.advance(Phase.READY)
            log.info("ready")


async def serve(
    config: Config,
    *,
    announce: Callable[[str], None],
    open_engine: OpenEngine = open_engine,
    work_limit: int | None = None,
) -> int:
    """Run a server on a validated configuration until SIGTERM or SIGINT.

    Args:
        announce: called once with `listening on ADDRESS` when the port is open, before any model loads.
        open_engine: what opens a model; tests script faults here.
        work_limit: bytes for everything but weights; None: what the machine has room for. Tests make it small.

    Returns:
        The process's exit code. Threads may be left that never end (a step that hangs), so the process is to be ended
        from inside the loop, whose own end waits for them.

    Raises:
        OSError: the address can't be bound; the message names it.
    """
    return await App(config, open_engine, work_limit).run(announce)
