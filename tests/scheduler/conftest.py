"""A scheduler over a scripted engine, closed at the end whatever happened."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fakes.engine import ScriptedEngine, ScriptedLoading, opens
from inferd_server.core.errors import InferdError
from inferd_server.core.model import EngineSettings
from inferd_server.scheduler import Scheduler
from support.no_blocking import no_blocking
from support.streams import OpenScheduler

__all__ = ["no_blocking", "open_scheduler"]


@pytest.fixture
async def open_scheduler() -> AsyncIterator[OpenScheduler]:
    """Opens schedulers; at the end each is closed and has left no thread, and none died that was not to."""
    before = set(threading.enumerate())
    deaths: list[InferdError] = []
    async with AsyncExitStack() as stack:

        async def open_one(
            engine: ScriptedEngine, on_death: Callable[[InferdError], None] = deaths.append, **settings: Any
        ) -> Scheduler:
            scheduler = await Scheduler.open(
                EngineSettings("m", Path("/nowhere"), **settings), ScriptedLoading(), opens(engine), on_death
            )
            stack.push_async_callback(scheduler.close)
            stack.callback(engine.close_gate.set)
            stack.callback(engine.gate.set)
            return scheduler

        yield open_one
    await asyncio.sleep(0)  # an on_death under way
    assert not deaths
    left = [t.name for t in set(threading.enumerate()) - before if t.name.startswith("inferd-")]
    assert not left, f"threads left behind: {left}"
