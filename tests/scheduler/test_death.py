"""Failing steps, dying engines, stuck engines."""

import asyncio
import gc
import logging
import time
import weakref
from pathlib import Path

import pytest

from fakes.engine import ScriptedEngine, ScriptedLoading, expected_ids, request
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import EngineSettings, Loading
from inferd_server.scheduler import Scheduler
from support.streams import OpenScheduler, eventually, read, read_ids, read_until_error


async def test_a_failed_step_ends_its_streams_and_the_model_goes_on(
    open_scheduler: OpenScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine(max_rows=2)
    scheduler = await open_scheduler(engine)
    victims = [scheduler.submit(request(p, max_tokens=100_000)) for p in (5, 6)]
    queued = scheduler.submit(request(7))
    await anext(victims[0])
    engine.step_errors.append(RuntimeError("metal says no"))
    for stream in victims:
        _, error = await read_until_error(stream)
        assert isinstance(error, InferdError)
        assert error.reason == Reason.ENGINE_FAILED
        assert "metal" not in error.message
    assert await read_ids(queued) == expected_ids(request(7))
    record = next(r for r in caplog.records if r.exc_info)
    assert (record.name, record.levelno) == ("inferd.scheduler", logging.ERROR)


async def test_tokens_emitted_before_a_failed_step_are_delivered(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    stream = scheduler.submit(request(5, max_tokens=100_000), coalesce_seconds=60)
    await eventually(lambda: engine.steps > 10)
    engine.step_errors.append(RuntimeError("boom"))
    ids, _ = await read_until_error(stream)
    assert ids == engine.emitted[(5,)]


async def test_three_failed_steps_in_a_row_are_death(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(step_errors=[RuntimeError("boom") for _ in range(3)])
    scheduler = await open_scheduler(engine, deaths.append)
    for _ in range(3):
        with pytest.raises(InferdError):
            await read(scheduler.submit(request(5)))
    await eventually(lambda: engine.is_closed)
    await asyncio.sleep(0)
    assert [error.reason for error in deaths] == [Reason.ENGINE_FAILED]


async def test_a_good_step_between_failed_ones_forgives_them(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    for _ in range(5):
        engine.step_errors.append(RuntimeError("boom"))
        with pytest.raises(InferdError):
            await read(scheduler.submit(request(5)))
        assert await read_ids(scheduler.submit(request(5))) == expected_ids(request(5))


async def test_a_broken_engine_ends_everything_once_and_frees_its_memory(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine, deaths.append)
    running, queued = (scheduler.submit(request(p, max_tokens=100_000)) for p in (5, 6))
    await anext(running)
    engine.is_broken = True
    engine.step_errors.append(RuntimeError("device lost"))
    for stream in (running, queued):
        _, error = await read_until_error(stream)
        assert isinstance(error, InferdError)
        assert error.reason == Reason.ENGINE_FAILED
    with pytest.raises(InferdError, match="failed"):
        scheduler.submit(request(5))
    await eventually(lambda: engine.is_closed)
    await scheduler.close()
    assert len(deaths) == 1
    assert (scheduler.statistics().running, scheduler.statistics().waiting) == (0, 0)


async def test_the_log_of_a_death_keeps_no_engine_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    held: list[weakref.ref[ScriptedEngine]] = []

    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        engine = ScriptedEngine(step_errors=[RuntimeError("device lost")], is_broken=True)
        held.append(weakref.ref(engine))
        return engine

    settings = EngineSettings("m", Path("/nowhere"))
    scheduler = await Scheduler.open(settings, ScriptedLoading(), open_engine, lambda error: None)
    with pytest.raises(InferdError):
        await read(scheduler.submit(request(5)))
    await scheduler.close()
    gc.collect()
    assert held[0]() is None
    assert any("device lost" in (record.exc_text or "") for record in caplog.records)


# pytest sees the SystemExit that the thread ends with; Python itself ends such a thread silently.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_ends_without_a_word_is_a_death(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(step_errors=[SystemExit()])
    scheduler = await open_scheduler(engine, deaths.append)
    with pytest.raises(InferdError):
        await read(scheduler.submit(request(5)))
    await eventually(lambda: len(deaths) == 1)
    assert engine.is_closed


async def test_an_engine_that_breaks_while_it_takes_a_sequence_is_dead(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(insert_errors=[RuntimeError("boom")], is_broken=True)
    scheduler = await open_scheduler(engine, deaths.append)
    with pytest.raises(InferdError):
        await read(scheduler.submit(request(5)))
    await eventually(lambda: len(deaths) == 1)


async def test_an_engine_that_loses_a_sequence_without_a_word_answers_its_reader(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine(loses_rows_silently=True)
    scheduler = await open_scheduler(engine)
    with pytest.raises(InferdError):
        await read(scheduler.submit(request(5)))
    engine.loses_rows_silently = False
    assert await read_ids(scheduler.submit(request(5))) == expected_ids(request(5))


async def test_a_stuck_step_is_death_and_close_waits_for_its_end(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine, deaths.append, step_timeout_seconds=0.05)
    streams = [scheduler.submit(request(p, max_tokens=100_000)) for p in (5, 6)]
    await anext(streams[0])
    engine.gate.clear()
    for stream in streams:
        _, error = await read_until_error(stream)
        assert isinstance(error, InferdError)
        assert error.reason == Reason.ENGINE_FAILED
    await asyncio.sleep(0)
    assert len(deaths) == 1
    closing = asyncio.ensure_future(scheduler.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    engine.gate.set()
    await closing
    assert engine.is_closed
    assert len(deaths) == 1


async def test_an_engine_that_comes_back_after_it_was_given_up_frees_its_memory_unasked(
    open_scheduler: OpenScheduler,
) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine, deaths.append, step_timeout_seconds=0.05)
    engine.gate.clear()
    with pytest.raises(InferdError):
        await read(scheduler.submit(request(5)))
    engine.gate.set()
    await eventually(lambda: engine.is_closed)


async def test_slow_steps_and_long_idle_times_are_not_taken_for_a_stuck_engine(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(step_seconds=0.04)
    scheduler = await open_scheduler(engine, step_timeout_seconds=0.3)
    decode = request(5, max_tokens=12)
    assert await read_ids(scheduler.submit(decode)) == expected_ids(decode)
    await asyncio.sleep(0.4)
    assert await read_ids(scheduler.submit(decode)) == expected_ids(decode)


async def test_a_slow_prefill_is_not_taken_for_a_stuck_engine_not_even_once_its_reader_left(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine(prefill_token_seconds=0.003)
    scheduler = await open_scheduler(engine, step_timeout_seconds=0.05)
    prompt = request(*range(3, 103), max_tokens=3)
    assert await read_ids(scheduler.submit(prompt)) == expected_ids(prompt)
    leaver = scheduler.submit(prompt)
    await eventually(engine.in_step.is_set)
    await leaver.aclose()
    assert await read_ids(scheduler.submit(prompt)) == expected_ids(prompt)


async def test_a_prefill_that_takes_far_longer_than_measured_is_stuck(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(prefill_token_seconds=0.001)
    scheduler = await open_scheduler(engine, deaths.append, step_timeout_seconds=0.05)
    prompt = request(*range(3, 103), max_tokens=3)
    await read(scheduler.submit(prompt))
    engine.gate.clear()
    began = time.monotonic()
    with pytest.raises(InferdError):
        await read(scheduler.submit(prompt))
    assert 0.4 < time.monotonic() - began < 4
    await asyncio.sleep(0)
    assert len(deaths) == 1


async def test_a_decode_step_is_allowed_nothing_for_the_prefill_before_it(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine(prefill_token_seconds=0.003)
    scheduler = await open_scheduler(engine, deaths.append, step_timeout_seconds=0.05)
    stream = scheduler.submit(request(*range(3, 103), max_tokens=100_000))
    await eventually(lambda: engine.steps > 5)
    engine.gate.clear()
    began = time.monotonic()
    _, error = await read_until_error(stream)
    assert isinstance(error, InferdError)
    assert time.monotonic() - began < 0.6  # the prefill had 1.2 s
    await asyncio.sleep(0)
    assert len(deaths) == 1


async def test_a_step_that_hangs_after_its_last_reader_left_is_noticed_too(open_scheduler: OpenScheduler) -> None:
    deaths: list[InferdError] = []
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine, deaths.append, step_timeout_seconds=0.05)
    engine.gate.clear()
    stream = scheduler.submit(request(5))
    await eventually(engine.in_step.is_set)
    await stream.aclose()
    await eventually(lambda: len(deaths) == 1)


async def test_close_ends_open_streams_and_is_idempotent(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine)
    streams = [scheduler.submit(request(p, max_tokens=100_000)) for p in (5, 6)]
    await scheduler.close()
    await scheduler.close()
    for stream in streams:
        _, error = await read_until_error(stream)
        assert isinstance(error, InferdError)
        assert error.reason == Reason.MODEL_UNLOADED
    assert engine.is_closed


async def test_a_cancelled_close_goes_on(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    engine.close_gate.clear()
    closing = asyncio.ensure_future(scheduler.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    engine.close_gate.set()
    await scheduler.close()
    assert engine.is_closed


async def test_an_exception_in_close_ends_the_thread_all_the_same(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(close_error=RuntimeError("boom"))
    scheduler = await open_scheduler(engine)
    await scheduler.close()
