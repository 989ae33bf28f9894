"""The order in which a server ends: no new work, a drain, the port, its own work, the engines."""

import asyncio
import logging

from inferd_server.config import Config
from inferd_server.core.errors import server_draining
from inferd_server.serving.lifecycle import Phase

from .background import Background
from .rooms import Rooms

log = logging.getLogger("inferd.app")

JOIN_SECONDS = 10.0
"""Longest wait for engines to end at shutdown; a thread whose step never returns must not hold the process."""
STOP_SECONDS = 1.0
"""For the handlers of requests that were cut to end by themselves."""


async def shut_down(rooms: Rooms, config: Config, background: Background) -> int:
    """Returns the exit code: 1 if an engine did not end."""
    server = config.server
    if rooms.lifecycle.phase is Phase.READY:
        rooms.lifecycle.advance(Phase.LAME_DUCK)
        await asyncio.sleep(server.drain_delay_s)
    rooms.lifecycle.advance(Phase.DRAINING)
    rooms.registry.end_waiting(server_draining())
    cut = await rooms.generations.drain(server.drain_timeout_s)
    rooms.lifecycle.advance(Phase.STOPPED)
    if cut:
        log.warning("requests cut at the end of the drain", extra={"count": cut})
    await rooms.server.stop(STOP_SECONDS)
    rooms.pictures.close()
    await background.end()
    return await _end_engines(rooms)


async def _end_engines(rooms: Rooms) -> int:
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            await rooms.registry.close()
            await rooms.loader.close()
    except TimeoutError:
        log.error("an engine did not end in time, exiting without it", extra={"seconds": JOIN_SECONDS})
        return 1
    log.info("stopped")
    return 0
