"""When tokens go out: first ones and ends at once, the rest at their common tick."""

import asyncio

import pytest

from fakes.engine import ScriptedEngine, expected_ids, request
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.generation import Token
from inferd_server.scheduler import Stream
from inferd_server.scheduler.coalescing import Ticks
from support.streams import OpenScheduler, eventually, read, read_until_error


def stream(number: int, coalesce_seconds: float) -> Stream:
    return Stream(number, request(5), coalesce_seconds, lambda stream: None)


def has_more(of: Stream) -> bool:
    """Whether the reader would get something now."""
    return of._is_released


def give(ticks: Ticks, to: Stream) -> None:
    to.push(Token(1, 7))
    ticks.hold(to)


def take(of: Stream) -> int:
    count = of.waiting_tokens
    of.discard()
    return count


@pytest.fixture
def two_streams() -> tuple[Ticks, Stream, Stream]:
    """Two streams of 10 ms in mid-output, released last at 0."""
    ticks, one, other = Ticks(1), stream(1, 0.01), stream(2, 0.01)
    for each in (one, other):
        ticks.join(each)
        give(ticks, each)
        take(each)
        give(ticks, each)
    assert ticks.release(0.0) is None
    take(one)
    take(other)
    return ticks, one, other


def test_a_first_token_is_released_alone_and_at_once(two_streams: tuple[Ticks, Stream, Stream]) -> None:
    ticks, one, _ = two_streams
    late = stream(3, 0.01)
    ticks.join(late)
    give(ticks, one)
    give(ticks, late)
    assert has_more(late)
    assert not has_more(one)


def test_streams_of_one_coalesce_time_are_released_together(two_streams: tuple[Ticks, Stream, Stream]) -> None:
    ticks, one, other = two_streams
    give(ticks, one)
    assert ticks.release(0.002) == pytest.approx(0.01)
    give(ticks, other)
    give(ticks, one)
    assert ticks.release(0.009) == pytest.approx(0.01)
    assert not has_more(one)
    assert ticks.release(0.01) is None
    assert (take(one), take(other)) == (2, 1)


def test_a_stream_that_left_no_longer_asks_for_a_release(two_streams: tuple[Ticks, Stream, Stream]) -> None:
    ticks, one, _ = two_streams
    give(ticks, one)
    ticks.leave(one)
    assert ticks.release(0.005) is None


def test_a_token_after_an_overdue_tick_goes_out_by_itself(two_streams: tuple[Ticks, Stream, Stream]) -> None:
    ticks, one, _ = two_streams
    for now in (0.02, 0.04, 0.06):
        give(ticks, one)
        assert ticks.release(now) is None
        assert take(one) == 1


@pytest.mark.parametrize(("cost", "due"), [(0.001, 0.01), (0.003, 0.02), (0.5, 0.04)])
def test_ticks_become_rarer_when_their_readers_take_the_loop_too_long(
    two_streams: tuple[Ticks, Stream, Stream], cost: float, due: float
) -> None:
    ticks, one, _ = two_streams
    assert ticks.is_costing
    ticks.note_cost(cost)
    assert not ticks.is_costing
    give(ticks, one)
    assert ticks.release(0.009) == pytest.approx(due)


def test_a_stretched_tick_relaxes_when_its_readers_are_quick_again(two_streams: tuple[Ticks, Stream, Stream]) -> None:
    ticks, one, _ = two_streams
    ticks.note_cost(0.1)
    give(ticks, one)
    assert ticks.release(0.04) is None
    ticks.note_cost(0.0401)
    give(ticks, one)
    assert ticks.release(0.0402) == pytest.approx(0.05)


def test_no_coalescing_is_never_stretched() -> None:
    ticks, eager = Ticks(1), stream(1, 0.0)
    ticks.join(eager)
    for _ in range(3):
        give(ticks, eager)
        assert ticks.release(5.0) is None
        ticks.note_cost(9.0)
    assert has_more(eager)


def test_no_coalescing_releases_each_token() -> None:
    ticks, eager = Ticks(1), stream(1, 0.0)
    ticks.join(eager)
    for _ in range(3):
        give(ticks, eager)
        assert ticks.release(5.0) is None
        assert has_more(eager)
        take(eager)


def test_the_interval_holds_tokens_back_but_for_the_first() -> None:
    ticks, one = Ticks(4), stream(1, 0.0)
    ticks.join(one)
    counts = []
    for now in range(9):
        give(ticks, one)
        ticks.release(float(now))
        if has_more(one):
            counts.append(take(one))
    assert counts == [1, 4, 4]


def test_each_coalesce_time_has_its_own_tick_and_it_goes_with_its_last_stream() -> None:
    ticks, fast, slow = Ticks(1), stream(1, 0.01), stream(2, 0.05)
    for each in (fast, slow):
        ticks.join(each)
        give(ticks, each)
        take(each)
        give(ticks, each)
    ticks.release(0.0)
    for each in (fast, slow):
        take(each)
        give(ticks, each)
    assert not ticks.is_shared
    assert ticks.release(0.01) == pytest.approx(0.05)
    assert has_more(fast)
    assert not has_more(slow)
    ticks.leave(slow)
    assert ticks.is_shared
    assert ticks.release(1.0) is None
    assert not has_more(slow)


async def test_tokens_of_one_tick_come_in_one_piece(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine(step_seconds=0.001)
    scheduler = await open_scheduler(engine)
    pieces = [len(tokens) async for tokens in scheduler.submit(request(5, max_tokens=100), coalesce_seconds=0.02)]
    assert sum(pieces) == 100
    assert len(pieces) < 30


async def test_waiting_tokens_go_out_in_time_though_the_next_step_is_long(open_scheduler: OpenScheduler) -> None:
    engine = ScriptedEngine()
    scheduler = await open_scheduler(engine)
    reader = scheduler.submit(request(5, max_tokens=100_000), coalesce_seconds=0.02)
    got = 0
    async with asyncio.timeout(2):
        while engine.steps < 100:
            got += len(await anext(reader))
        engine.gate.clear()
        await eventually(engine.in_step.is_set)
        while got < len(engine.emitted[(5,)]):
            got += len(await anext(reader))
    await reader.aclose()


async def test_slow_steps_deliver_every_token_by_itself(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(step_seconds=0.05))
    pieces = [len(tokens) async for tokens in scheduler.submit(request(5, max_tokens=8), coalesce_seconds=0.005)]
    assert pieces.count(1) >= 5  # all, but for a reader that a busy machine holds up


async def test_an_end_does_not_release_its_neighbours(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(step_seconds=0.001))
    patient = scheduler.submit(request(4, max_tokens=100_000), coalesce_seconds=60)
    got = 0
    while got < 2:  # the first token, and what the overdue first tick releases
        got += len(await anext(patient))
    assert [t.token_id for t in await read(scheduler.submit(request(5), coalesce_seconds=60))] == expected_ids(
        request(5)
    )
    assert not has_more(patient)
    await patient.aclose()


async def test_a_first_token_is_not_kept_by_a_patient_neighbour(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(step_seconds=0.03))
    patient = scheduler.submit(request(4, max_tokens=100_000), coalesce_seconds=60)
    got = 0
    while got < 2:
        got += len(await anext(patient))
    newcomer = scheduler.submit(request(5, max_tokens=100_000), coalesce_seconds=60)
    async with asyncio.timeout(1.2):
        await anext(newcomer)
    await newcomer.aclose()
    await patient.aclose()


async def test_a_long_coalesce_time_does_not_lift_the_bound_of_a_stream(
    open_scheduler: OpenScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd_server.scheduler.stream.MAX_WAITING_TOKENS", 300)
    scheduler = await open_scheduler(ScriptedEngine())
    stream = scheduler.submit(request(4, max_tokens=100_000), coalesce_seconds=3600)
    await eventually(lambda: scheduler.statistics().running == 0)
    _, error = await read_until_error(stream)
    assert isinstance(error, InferdError)
    assert error.reason == Reason.SLOW_CONSUMER


async def test_no_coalescing_is_not_slowed_by_a_patient_neighbour(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(step_seconds=0.05))
    patient = scheduler.submit(request(4, max_tokens=100_000), coalesce_seconds=60)
    await anext(patient)
    pieces = [len(tokens) async for tokens in scheduler.submit(request(5, max_tokens=8), coalesce_seconds=0)]
    assert pieces.count(1) >= 5  # all, but for a reader that a busy machine holds up
    await patient.aclose()


async def test_at_most_one_call_to_the_loop_per_step(
    open_scheduler: OpenScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    loop = asyncio.get_running_loop()
    real = loop.call_soon_threadsafe

    def count(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return real(*args, **kwargs)  # type: ignore[arg-type]

    engine = ScriptedEngine(step_seconds=0.001)
    scheduler = await open_scheduler(engine)
    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    await asyncio.gather(
        *(read(scheduler.submit(request(3 + i, max_tokens=50 + i), coalesce_seconds=i % 4 / 100)) for i in range(32))
    )
    assert calls <= engine.steps
    calls, steps = 0, engine.steps
    await asyncio.gather(*(read(scheduler.submit(request(3 + i, max_tokens=200))) for i in range(32)))
    assert calls < (engine.steps - steps) / 2
