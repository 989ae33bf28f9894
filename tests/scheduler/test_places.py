"""Streams that asked are told how many are ahead of them in the queue."""

import asyncio

import pytest

from fakes.engine import ScriptedEngine, request
from inferd_server.core.errors import InferdError, server_draining
from inferd_server.core.model import Interrupted
from inferd_server.scheduler import Scheduler, Stream
from support.streams import OpenScheduler


def ask(scheduler: Scheduler, priority: int = 0) -> Stream:
    return scheduler.submit(request(max_tokens=100_000), priority=priority, tell_position=True)


async def told(stream: Stream) -> list[int]:
    """Everything it is told until it has a row."""
    positions: list[int] = []
    while (position := await stream.next_position()) is not None:
        positions.append(position)
    return positions


async def hears_nothing(stream: Stream) -> bool:
    """For so long that all changes must have been told."""
    try:
        await asyncio.wait_for(stream.next_position(), 0.12)
    except TimeoutError:
        return True
    return False


async def test_a_place_is_by_priority_and_each_change_is_told_until_there_is_a_row(
    open_scheduler: OpenScheduler,
) -> None:
    scheduler = await open_scheduler(ScriptedEngine(max_rows=1))
    running = ask(scheduler)
    assert await told(running) == []
    waiting = [ask(scheduler) for _ in range(4)]
    assert [await each.next_position() for each in waiting] == [0, 1, 2, 3]
    first = ask(scheduler, priority=50)
    assert await first.next_position() == 0
    assert [await each.next_position() for each in waiting] == [1, 2, 3, 4]
    await waiting[0].aclose()
    await waiting[1].aclose()  # both are told as one
    assert [await each.next_position() for each in waiting[2:]] == [1, 2]
    assert await hears_nothing(first)
    await running.aclose()
    assert await first.next_position() is None
    assert [await each.next_position() for each in waiting[2:]] == [0, 1]
    await first.aclose()
    assert await told(waiting[2]) == []
    assert await waiting[3].next_position() == 0


async def test_a_slow_listener_is_told_the_latest_alone(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(max_rows=1))
    running, ahead = ask(scheduler), [ask(scheduler) for _ in range(2)]
    listener = ask(scheduler)
    for each in ahead:
        await each.aclose()
        await asyncio.sleep(0.06)
    assert await listener.next_position() == 0
    await running.aclose()
    assert await listener.next_position() is None


async def test_whoever_did_not_ask_is_told_nothing_and_costs_no_timer(open_scheduler: OpenScheduler) -> None:
    scheduler = await open_scheduler(ScriptedEngine(max_rows=1))
    running, silent = (scheduler.submit(request(max_tokens=100_000)) for _ in range(2))
    assert await hears_nothing(silent)
    assert scheduler._places._timer is None
    await running.aclose()
    assert await silent.next_position() is None


@pytest.mark.parametrize("ending", ["interrupt", "abort", "aclose"])
async def test_the_end_of_a_wait_ends_the_news(open_scheduler: OpenScheduler, ending: str) -> None:
    scheduler = await open_scheduler(ScriptedEngine(max_rows=1))
    ask(scheduler)
    listener = ask(scheduler)
    assert await listener.next_position() == 0
    listening = asyncio.ensure_future(listener.next_position())
    await asyncio.sleep(0)
    if ending == "interrupt":
        scheduler.interrupt("rival")
    elif ending == "abort":
        scheduler.abort(server_draining())
    else:
        await listener.aclose()
        await asyncio.sleep(0.06)
    with pytest.raises((Interrupted, InferdError, RuntimeError)):
        await listening
    assert scheduler._places._told == []
    assert scheduler._places._timer is None
