"""Opening: whatever happens, the thread is accounted for and nothing keeps the model in memory."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path

import pytest

from fakes.engine import ScriptedEngine, ScriptedLoading, opens
from inferd_server.core.errors import InferdError, Reason, model_corrupt
from inferd_server.core.model import EngineSettings, LoadAbandoned, Loading
from inferd_server.scheduler import Scheduler

SETTINGS = EngineSettings("m", Path("/nowhere"))


def worker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "inferd-m"]


class Weights:
    """Something heavy."""


@pytest.mark.parametrize(
    ("raised", "reason"),
    [(model_corrupt("m", "a.safetensors", "short"), Reason.MODEL_CORRUPT), (OSError("x"), Reason.MODEL_LOAD_FAILED)],
)
async def test_a_failed_open_raises_after_the_thread_ended_and_holds_nothing(raised: Exception, reason: Reason) -> None:
    held: list[weakref.ref[Weights]] = []
    ended: list[int] = []

    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        weights = Weights()
        held.append(weakref.ref(weights))
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise raised from inner

    with pytest.raises(InferdError) as caught:
        await Scheduler.open(
            SETTINGS, ScriptedLoading(), open_engine, lambda error: None, end_thread=lambda: ended.append(1)
        )
    assert caught.value.reason == reason
    assert ended == [1]
    assert not worker_threads()
    gc.collect()
    assert held[0]() is None


async def test_an_abandoned_load_says_so() -> None:
    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        assert loading.abandoned
        raise LoadAbandoned

    loading = ScriptedLoading()
    loading.abandoned = True
    with pytest.raises(LoadAbandoned):
        await Scheduler.open(SETTINGS, loading, open_engine, lambda error: None)
    assert not worker_threads()


async def test_a_cancelled_open_abandons_the_load_and_awaits_its_end() -> None:
    started, seen = threading.Event(), threading.Event()

    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        started.set()
        while not loading.abandoned:
            seen.wait(0.001)
        seen.set()
        raise LoadAbandoned

    opening = asyncio.ensure_future(Scheduler.open(SETTINGS, ScriptedLoading(), open_engine, lambda error: None))
    await asyncio.to_thread(started.wait)
    opening.cancel()
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert seen.is_set()
    assert not worker_threads()


async def test_an_engine_that_opens_after_its_caller_was_cancelled_is_closed() -> None:
    engine = ScriptedEngine()
    go_on = threading.Event()

    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        go_on.wait()
        return engine

    opening = asyncio.ensure_future(Scheduler.open(SETTINGS, ScriptedLoading(), open_engine, lambda error: None))
    await asyncio.sleep(0.01)
    opening.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert engine.is_closed
    assert not worker_threads()


async def test_close_drops_the_engine_before_the_threads_last_call() -> None:
    held: list[weakref.ref[ScriptedEngine]] = []
    alive_at_end: list[bool] = []

    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        engine = ScriptedEngine()
        held.append(weakref.ref(engine))
        return engine

    scheduler = await Scheduler.open(
        SETTINGS,
        ScriptedLoading(),
        open_engine,
        lambda error: None,
        end_thread=lambda: alive_at_end.append(held[0]() is not None),
    )
    await scheduler.close()
    assert alive_at_end == [False]


async def test_progress_reaches_the_caller_and_the_thread_is_not_a_daemon() -> None:
    loading = ScriptedLoading()
    scheduler = await Scheduler.open(SETTINGS, loading, opens(ScriptedEngine()), lambda error: None)
    assert loading.reported == [(1000, 1000)]
    assert [thread.daemon for thread in worker_threads()] == [False]
    await scheduler.close()
    assert not worker_threads()
