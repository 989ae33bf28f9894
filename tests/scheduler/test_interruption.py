"""Interrupt, resume, abort: exact to the token."""

import asyncio
from contextlib import aclosing

import pytest

from fakes.engine import ScriptedEngine, expected_ids, request
from inferd_server.core.errors import InferdError, Reason, model_unloaded
from inferd_server.core.model import Interrupted
from support.streams import OpenScheduler, eventually, read, read_ids, read_until_error


async def test_an_interrupted_stream_delivers_all_that_was_emitted_and_then_says_so(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine(step_seconds=0.0003)
    scheduler = await open_scheduler(engine)
    requests = [request(3 + i, max_tokens=100_000) for i in range(16)]
    streams = [scheduler.submit(r, coalesce_seconds=i % 3 * 0.01) for i, r in enumerate(requests)]
    readers = [asyncio.ensure_future(read_until_error(stream)) for stream in streams]
    await asyncio.sleep(0.03)
    scheduler.interrupt("rival")
    for (ids, error), decode in zip(await asyncio.gather(*readers), requests, strict=True):
        assert isinstance(error, Interrupted)
        assert error.by_model == "rival"
        assert ids == engine.emitted[decode.prompt_ids]
        assert ids == expected_ids(decode, len(ids))
    assert not engine.rows
    assert scheduler.statistics().running == 0


async def test_a_token_of_the_step_under_way_is_delivered_before_the_interruption(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    stream = scheduler.submit(request(5, max_tokens=100_000), coalesce_seconds=60)
    first = await anext(stream)
    engine.gate.clear()
    await eventually(engine.in_step.is_set)
    scheduler.interrupt("rival")
    await asyncio.sleep(0.01)
    assert scheduler.statistics().running == 1
    engine.gate.set()
    ids, error = await read_until_error(stream)
    assert isinstance(error, Interrupted)
    assert [*(token.token_id for token in first), *ids] == engine.emitted[(5,)]


async def test_a_sequence_that_ends_in_the_step_under_way_is_finished_not_interrupted(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    engine.gate.clear()
    stream = scheduler.submit(request(5, max_tokens=1))
    await eventually(engine.in_step.is_set)
    scheduler.interrupt("rival")
    engine.gate.set()
    assert await read_ids(stream) == expected_ids(request(5, max_tokens=1))


async def test_resumed_sequences_yield_what_an_uninterrupted_run_yields(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(step_seconds=0.0002)
    scheduler = await open_scheduler(engine, max_batch_size=4)

    async def whole(first_id: int) -> list[int]:
        ids: list[int] = []
        while True:
            try:
                stream = scheduler.submit(request(first_id, max_tokens=60 - len(ids), emitted_ids=tuple(ids)))
            except Interrupted:
                await asyncio.sleep(0.001)
                continue
            async with aclosing(stream):
                try:
                    await stream.admitted()
                    async for tokens in stream:
                        ids.extend(token.token_id for token in tokens)
                    return ids
                except Interrupted:
                    pass

    readers = [asyncio.ensure_future(whole(3 + i)) for i in range(8)]
    for _ in range(10):
        await asyncio.sleep(0.004)
        scheduler.interrupt("rival")
        await asyncio.sleep(0.001)
        scheduler.resume()
    assert await asyncio.gather(*readers) == [expected_ids(request(3 + i, max_tokens=60)) for i in range(8)]


async def test_a_queued_stream_is_interrupted_at_once(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine)
    running, queued = (scheduler.submit(request(p, max_tokens=100_000)) for p in (5, 6))
    waiting = asyncio.ensure_future(queued.admitted())
    await anext(running)
    scheduler.interrupt("rival")
    assert scheduler.statistics().waiting == 0
    with pytest.raises(Interrupted):
        await waiting
    with pytest.raises(Interrupted):
        await anext(queued)
    await read_until_error(running)
    assert engine.order == [(5,)]


async def test_nothing_is_admitted_between_interrupt_and_resume(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine())
    scheduler.interrupt("rival")
    scheduler.interrupt("another")
    with pytest.raises(Interrupted, match="rival"):
        scheduler.submit(request(5))
    scheduler.resume()
    assert await read_ids(scheduler.submit(request(5))) == expected_ids(request(5))


async def test_a_stream_submitted_after_a_hasty_resume_is_not_hit_by_the_old_interruption(
    open_scheduler: OpenScheduler,
) -> None:
    engine = ScriptedEngine(max_rows=4)
    scheduler = await open_scheduler(engine)
    old = scheduler.submit(request(4, max_tokens=100_000))
    await anext(old)
    engine.gate.clear()
    await eventually(engine.in_step.is_set)
    scheduler.interrupt("rival")
    scheduler.resume()
    new = scheduler.submit(request(5))
    engine.gate.set()
    assert await read_ids(new) == expected_ids(request(5))
    assert isinstance((await read_until_error(old))[1], Interrupted)


async def test_a_stream_closed_during_the_interruption_stays_closed(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    stream = scheduler.submit(request(5, max_tokens=100_000))
    await anext(stream)
    scheduler.interrupt("rival")
    await stream.aclose()
    await eventually(lambda: not engine.rows)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_abort_ends_running_and_queued_streams_and_refuses_later_ones(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(max_rows=1)
    scheduler = await open_scheduler(engine)
    running, queued = (scheduler.submit(request(p, max_tokens=100_000)) for p in (5, 6))
    await anext(running)
    scheduler.abort(model_unloaded("m"))
    for stream in (running, queued):
        _, error = await read_until_error(stream)
        assert isinstance(error, InferdError)
        assert error.reason == Reason.MODEL_UNLOADED
    with pytest.raises(InferdError, match="unloaded"):
        scheduler.submit(request(5))
    with pytest.raises(InferdError, match="unloaded"):
        await queued.admitted()
    await eventually(lambda: not engine.rows)


async def test_abort_delivers_what_had_arrived(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    stream = scheduler.submit(request(5, max_tokens=100_000), coalesce_seconds=60)
    first = await anext(stream)
    await eventually(lambda: engine.steps > 20)
    engine.gate.clear()
    await eventually(engine.in_step.is_set)
    scheduler.abort(model_unloaded("m"))
    ids, _ = await read_until_error(stream)
    assert [*(token.token_id for token in first), *ids] == engine.emitted[(5,)]
    engine.gate.set()


async def test_abort_does_not_wait_for_a_hanging_step(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    engine.gate.clear()
    stream = scheduler.submit(request(5))
    await eventually(engine.in_step.is_set)
    scheduler.abort(model_unloaded("m"))
    with pytest.raises(InferdError, match="unloaded"):
        await read(stream)
    assert scheduler.statistics().running == 0


async def test_a_failing_stream_says_so_once_though_nobody_reads_it_and_a_good_end_says_nothing(
    open_scheduler: OpenScheduler,
) -> None:
    scheduler = await open_scheduler(ScriptedEngine(max_rows=1))
    told: list[str] = []
    running, queued = (scheduler.submit(request(5, max_tokens=100_000)) for _ in range(2))
    running.on_failure = lambda: told.append("running")
    queued.on_failure = lambda: told.append("queued")
    await running.admitted()
    scheduler.interrupt("rival")
    await eventually(lambda: len(told) == 2)
    for stream in (running, queued):
        await stream.aclose()
    scheduler.resume()
    good = scheduler.submit(request(6))
    good.on_failure = lambda: told.append("good")
    await read(good)
    await asyncio.sleep(0)
    assert sorted(told) == ["queued", "running"]
