"""Who gets a row, and when it is free again."""

import asyncio
import random
from contextlib import aclosing

import pytest

from fakes.engine import END_ID, ScriptedEngine, expected_ids, request
from inferd_server.core.errors import InferdError, Reason, engine_failed
from inferd_server.scheduler import Scheduler, Stream
from support.streams import OpenScheduler, eventually, read, read_ids


async def test_a_stream_delivers_exactly_what_the_engine_emitted(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(prefill_steps=3))
    tokens = await read(scheduler.submit(request(5, 6, max_tokens=50)))
    assert [token.token_id for token in tokens] == expected_ids(request(5, 6, max_tokens=50))
    assert [token.ended for token in tokens] == [""] * 49 + ["length"]
    assert scheduler.statistics().running == 0


async def test_the_end_id_is_delivered_as_the_end(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(ends_after=3))
    tokens = await read(scheduler.submit(request(5)))
    assert [(token.token_id == END_ID, token.ended) for token in tokens] == [(False, "")] * 3 + [(True, "end_id")]


async def test_many_streams_share_steps_and_each_gets_its_own_tokens(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    requests = [request(3 + i, max_tokens=1 + i) for i in range(40)]
    answers = await asyncio.gather(*(read_ids(scheduler.submit(r)) for r in requests))
    assert answers == [expected_ids(r) for r in requests]
    assert engine.steps < 80


async def test_a_free_row_is_given_at_submit(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine())
    stream = scheduler.submit(request(5))
    assert scheduler.statistics().running == 1
    async with aclosing(stream), asyncio.timeout(0):
        await stream.admitted()


@pytest.mark.parametrize(
    ("engine_rows", "settings", "rows"),
    [
        (2, {}, 2),
        (8, {"max_batch_size": 3}, 3),
        (8, {"continuous_batching": False}, 1),
    ],
)
async def test_no_more_rows_than_the_engine_the_entry_and_batching_allow(
    open_scheduler: OpenScheduler, engine_rows: int, settings: dict[str, object], rows: int
) -> None:
    engine = ScriptedEngine(max_rows=engine_rows)
    scheduler = await open_scheduler(engine, **settings)
    readers = [asyncio.ensure_future(read_ids(scheduler.submit(request(i + 3)))) for i in range(10)]
    assert (scheduler.statistics().running, scheduler.statistics().waiting) == (rows, 10 - rows)
    assert await asyncio.gather(*readers) == [expected_ids(request(i + 3)) for i in range(10)]
    assert engine.most_rows == rows


async def test_waiting_streams_are_admitted_by_priority_then_arrival(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine)
    order = [(10, 0), (11, 0), (12, 5), (13, 0), (14, 5)]
    await asyncio.gather(*(read(scheduler.submit(request(p), priority=priority)) for p, priority in order))
    assert engine.order == [(10,), (12,), (14,), (11,), (13,)]


async def test_a_stream_closed_in_the_queue_gives_its_place_to_the_next(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine)
    first, leaver, last = (scheduler.submit(request(p)) for p in (10, 11, 12))
    await leaver.aclose()
    assert scheduler.statistics().waiting == 1
    await asyncio.gather(read(first), read(last))
    assert engine.order == [(10,), (12,)]
    with pytest.raises(RuntimeError, match="closed"):
        await leaver.admitted()


async def test_a_stream_closed_in_prefill_or_decode_leaves_the_engine_within_one_step(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine(prefill_steps=2)
    scheduler = await open_scheduler(engine)
    for has_token in (False, True):
        stream = scheduler.submit(request(5, max_tokens=10_000))
        if has_token:
            await anext(stream)
        await eventually(lambda: bool(engine.rows))
        engine.gate.clear()
        await eventually(engine.in_step.is_set)
        steps = engine.steps
        await stream.aclose()
        assert scheduler.statistics().running == 0
        engine.gate.set()
        await eventually(lambda: not engine.rows)
        assert engine.steps <= steps + 1


async def test_a_row_given_away_during_a_step_is_emptied_before_it_is_filled(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=2)
    scheduler = await open_scheduler(engine)
    streams = [scheduler.submit(request(p, max_tokens=10_000)) for p in (10, 11)]
    await anext(streams[0])
    heirs = [scheduler.submit(request(p)) for p in (12, 13)]
    engine.gate.clear()
    await eventually(engine.in_step.is_set)
    for stream in streams:
        await stream.aclose()
    await heirs[0].admitted()
    engine.gate.set()
    assert await asyncio.gather(*map(read_ids, heirs)) == [expected_ids(request(p)) for p in (12, 13)]
    assert engine.most_rows == 2


async def test_all_that_waits_is_applied_before_the_next_step(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    engine.gate.clear()
    readers = [asyncio.ensure_future(read(scheduler.submit(request(3, max_tokens=2))))]
    await eventually(engine.in_step.is_set)
    readers += [asyncio.ensure_future(read(scheduler.submit(request(4 + i, max_tokens=2)))) for i in range(20)]
    engine.gate.set()
    await asyncio.gather(*readers)
    assert engine.steps == 3


async def test_closing_before_the_engine_saw_the_insert_still_removes_it(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    neighbour = scheduler.submit(request(4, max_tokens=3))
    engine.gate.clear()
    await eventually(engine.in_step.is_set)
    stream = scheduler.submit(request(5, max_tokens=10_000))
    await stream.aclose()
    engine.gate.set()
    assert await read_ids(neighbour) == expected_ids(request(4, max_tokens=3))
    await eventually(lambda: not engine.rows)
    assert len(engine.removed) == 1


async def test_closing_twice_and_closing_after_the_end_change_nothing(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine())
    stream = scheduler.submit(request(5))
    await read(stream)
    await stream.aclose()
    left = scheduler.submit(request(5))
    await left.aclose()
    await left.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(left)
    assert scheduler.statistics().running == 0


async def test_a_reader_cancelled_while_it_waits_loses_no_token(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    engine.gate.clear()
    stream = scheduler.submit(request(5))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    engine.gate.set()
    assert await read_ids(stream) == expected_ids(request(5))


async def test_two_hundred_random_cancels_leave_nothing_running_or_waiting(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=8, prefill_steps=2, step_seconds=0.0005)
    scheduler = await open_scheduler(engine)
    dice = random.Random(1)
    finished: list[int] = []

    async def one(i: int) -> None:
        decode = request(3 + i, max_tokens=dice.randint(1, 60))
        ids = await read_ids(scheduler.submit(decode, priority=dice.randint(-5, 5)))
        assert ids == expected_ids(decode)
        finished.append(i)

    tasks = [asyncio.ensure_future(one(i)) for i in range(200)]
    for task in dice.sample(tasks, 200):
        await asyncio.sleep(dice.choice((0, 0.0002, 0.002)))
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() or task.exception() is None for task in tasks)
    await eventually(lambda: not engine.rows)
    statistics = scheduler.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    assert engine.most_rows <= 8
    assert await read_ids(scheduler.submit(request(5))) == expected_ids(request(5))


async def test_a_sequence_that_fails_takes_nobody_with_it(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(failing_prompts={66: "NaN logits"}))
    good, bad = scheduler.submit(request(5)), scheduler.submit(request(66))
    good_reader = asyncio.ensure_future(read_ids(good))
    with pytest.raises(InferdError) as caught:
        await read(bad)
    assert caught.value.reason == Reason.ENGINE_FAILED
    assert await good_reader == expected_ids(request(5))
    assert scheduler.statistics().running == 0


@pytest.mark.parametrize(
    ("raised", "message"),
    [(ValueError("secret prompt"), "the engine of model 'm' failed"), (engine_failed("other"), "other")],
)
async def test_a_sequence_that_is_not_taken_fails_alone(
    open_scheduler: OpenScheduler, raised: Exception, message: str
) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    neighbour = scheduler.submit(request(4, max_tokens=100))
    await anext(neighbour)
    engine.insert_errors.append(raised)
    with pytest.raises(InferdError, match=message):
        await read(scheduler.submit(request(5)))
    assert (await read_ids(neighbour))[-1] == expected_ids(request(4, max_tokens=100))[-1]


async def test_a_slow_reader_ends_alone_and_frees_its_row(
    open_scheduler: OpenScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd_server.scheduler.stream.MAX_WAITING_TOKENS", 50)
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    slow = scheduler.submit(request(4, max_tokens=10_000))
    assert await read_ids(scheduler.submit(request(5, max_tokens=200))) == expected_ids(request(5, max_tokens=200))
    assert scheduler.statistics().running == 0
    await eventually(lambda: not engine.rows)
    with pytest.raises(InferdError) as caught:
        await anext(slow)
    assert caught.value.reason == Reason.SLOW_CONSUMER


async def test_alternatives_count_against_a_slow_reader_too(
    open_scheduler: OpenScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd_server.scheduler.stream.MAX_WAITING_LOGPROBS", 100)
    scheduler = await open_scheduler(ScriptedEngine())
    slow = scheduler.submit(request(4, max_tokens=30, top_logprobs=9))
    await eventually(lambda: scheduler.statistics().running == 0)
    with pytest.raises(InferdError) as caught:
        await anext(slow)
    assert caught.value.reason == Reason.SLOW_CONSUMER


async def test_everything_of_the_engine_happens_on_one_thread(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler: Scheduler = await open_scheduler(engine)
    stream: Stream = scheduler.submit(request(5, max_tokens=1000))
    await anext(stream)
    await stream.aclose()
    await read(scheduler.submit(request(6)))
    await scheduler.close()
    assert engine.is_closed
    assert len(engine.thread_ids) == 1


async def test_statistics_tell_the_cache_and_the_pulse_of_the_worker(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    assert scheduler.weights_nbytes == 1000
    assert scheduler.statistics().step_age_seconds == 0
    engine.gate.clear()
    stream = scheduler.submit(request(5))
    await eventually(lambda: scheduler.statistics().step_age_seconds > 0)
    engine.gate.set()
    await read(stream)
    await eventually(lambda: scheduler.statistics().step_age_seconds == 0)
    assert scheduler.statistics().cache_nbytes == 0
