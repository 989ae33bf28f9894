"""A row is given only with the memory that its sequence may need."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from fakes.engine import ScriptedEngine, ScriptedLoading, expected_ids, opens, request
from inferd_server.core.errors import InferdError, Reason, server_draining
from inferd_server.core.generation import DecodeRequest
from inferd_server.core.model import EngineSettings
from inferd_server.engine.memory import CacheNeed, Footprint
from inferd_server.scheduler import Scheduler
from inferd_server.scheduler.memory import WorkMemory
from support.streams import eventually, read_ids, read_until_error

A_KILOBYTE_PER_TOKEN = Footprint(CacheNeed(token_nbytes=1024))


def needed(rows: int, *lengths: int) -> int:
    return A_KILOBYTE_PER_TOKEN.peak_nbytes(rows, max(lengths), 0)


class World:
    """Schedulers over one memory; closed at the end."""

    def __init__(self, limit_nbytes: int) -> None:
        self.memory = WorkMemory(limit_nbytes)
        self.schedulers: list[Scheduler] = []

    async def open(self, engine: ScriptedEngine, **settings: int) -> Scheduler:
        engine.footprint = A_KILOBYTE_PER_TOKEN
        scheduler = await Scheduler.open(
            EngineSettings("m", Path("/nowhere"), **settings),  # type: ignore[arg-type]
            ScriptedLoading(),
            opens(engine),
            lambda error: None,
            memory=self.memory,
        )
        self.schedulers.append(scheduler)
        return scheduler

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *_: object) -> None:
        for scheduler in self.schedulers:
            await scheduler.close()


def long(first: int, tokens: int) -> DecodeRequest:
    return request(first, max_tokens=tokens)


async def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    async with World(needed(1, 501)) as world:
        scheduler = await world.open(ScriptedEngine())
        with pytest.raises(InferdError) as caught:
            scheduler.submit(long(5, 501))
        assert caught.value.reason is Reason.OUT_OF_MEMORY
        assert caught.value.facts["required_bytes"] == str(needed(1, 502))
        assert caught.value.facts["limit_bytes"] == str(needed(1, 501))
        assert await read_ids(scheduler.submit(long(5, 500))) == expected_ids(long(5, 500))


async def test_what_fits_later_waits_in_order_and_all_finish() -> None:
    async with World(needed(2, 101)) as world:
        engine = ScriptedEngine()
        scheduler = await world.open(engine)
        streams = [scheduler.submit(long(first, 100)) for first in range(5, 15)]
        assert (scheduler.statistics().running, scheduler.statistics().waiting) == (2, 8)
        answers = await asyncio.gather(*map(read_ids, streams))
        assert answers == [expected_ids(long(first, 100)) for first in range(5, 15)]
        assert engine.most_rows == 2
        assert engine.order == [(first,) for first in range(5, 15)]
        assert world.memory.promised_nbytes == 0


async def test_a_long_one_is_not_passed_by_for_ever() -> None:
    async with World(needed(1, 500)) as world:
        engine = ScriptedEngine()
        scheduler = await world.open(engine)
        streams = [scheduler.submit(each) for each in (long(5, 50), long(6, 490), long(7, 50))]
        await asyncio.gather(*map(read_ids, streams))
        assert engine.order == [(5,), (6,), (7,)]


async def test_a_leaver_gives_its_memory_to_the_next_at_once() -> None:
    async with World(needed(1, 1001)) as world:
        scheduler = await world.open(ScriptedEngine())
        first, second = scheduler.submit(long(5, 1000)), scheduler.submit(long(6, 1000))
        async with aclosing(second):
            await first.aclose()
            assert second.is_admitted
        assert world.memory.promised_nbytes == 0


async def test_another_model_s_work_counts_and_its_end_wakes_whoever_waits() -> None:
    async with World(needed(1, 101)) as world:
        first, second = await world.open(ScriptedEngine()), await world.open(ScriptedEngine())
        running, waiting = first.submit(long(5, 100)), second.submit(long(6, 100))
        assert not waiting.is_admitted
        assert await read_ids(running) == expected_ids(long(5, 100))
        assert await read_ids(waiting) == expected_ids(long(6, 100))


async def test_a_closed_model_gives_everything_back() -> None:
    async with World(needed(1, 101)) as world:
        first, second = await world.open(ScriptedEngine()), await world.open(ScriptedEngine())
        running, waiting = first.submit(long(5, 100)), second.submit(long(6, 100))
        await running.aclose()
        world.schedulers.remove(first)
        await first.close()
        assert await read_ids(waiting) == expected_ids(long(6, 100))


async def test_prefix_caches_give_way_to_work_and_come_back() -> None:
    limit = needed(1, 1001) + 1000
    async with World(limit) as world:
        engine, neighbour = ScriptedEngine(), ScriptedEngine()
        scheduler = await world.open(engine, prefix_cache_nbytes=limit - 200)
        await world.open(neighbour, prefix_cache_nbytes=500)
        await eventually(lambda: neighbour.prefix_cache_bounds == [200])
        stream = scheduler.submit(long(5, 1000))
        await eventually(lambda: engine.prefix_cache_bounds == [500] and neighbour.prefix_cache_bounds == [200, 500])
        await read_ids(stream)
        await eventually(lambda: engine.prefix_cache_bounds == [500, limit - 500])


async def test_a_new_limit_counts_from_then_on() -> None:
    async with World(needed(1, 101)) as world:
        scheduler = await world.open(ScriptedEngine())
        first, second = scheduler.submit(long(5, 100)), scheduler.submit(long(6, 100))
        assert not second.is_admitted
        world.memory.limit(needed(2, 101))
        await asyncio.wait_for(second.admitted(), 1)
        await asyncio.gather(read_ids(first), read_ids(second))


async def test_a_smaller_limit_ends_whoever_fits_no_more_at_once_and_holds_up_nobody() -> None:
    async with World(needed(1, 1001)) as world:
        first, second = await world.open(ScriptedEngine()), await world.open(ScriptedEngine())
        running, in_line = first.submit(long(5, 900)), second.submit(long(6, 1000))
        small, behind = second.submit(long(7, 100)), second.submit(long(8, 1000))
        world.memory.limit(needed(1, 501))
        for misfit in (in_line, behind):
            ids, error = await asyncio.wait_for(read_until_error(misfit), 1)
            assert isinstance(error, InferdError)
            assert (ids, error.reason) == ([], Reason.OUT_OF_MEMORY)
            assert error.facts["limit_bytes"] == str(needed(1, 501))
        assert await read_ids(running) == expected_ids(long(5, 900))
        assert await read_ids(small) == expected_ids(long(7, 100))
        assert await read_ids(first.submit(long(9, 500))) == expected_ids(long(9, 500))


async def test_whoever_leaves_the_head_of_the_line_lets_the_next_in() -> None:
    async with World(needed(1, 500)) as world:
        scheduler = await world.open(ScriptedEngine())
        running, large, small = (scheduler.submit(long(first, tokens)) for first, tokens in ((5, 50), (6, 490), (7, 5)))
        assert (running.is_admitted, large.is_admitted, small.is_admitted) == (True, False, False)
        await large.aclose()
        assert small.is_admitted
        await asyncio.gather(read_ids(running), read_ids(small))


@pytest.mark.parametrize("ending", ["close", "interrupt", "abort"])
async def test_a_model_that_waited_in_vain_holds_up_no_other(ending: str) -> None:
    async with World(needed(1, 500)) as world:
        first, second = await world.open(ScriptedEngine()), await world.open(ScriptedEngine())
        running, large = first.submit(long(5, 50)), second.submit(long(6, 490))
        if ending == "close":
            await large.aclose()
        elif ending == "interrupt":
            second.interrupt("rival")
        else:
            second.abort(server_draining())
        assert first.submit(long(7, 5)).is_admitted
        await read_ids(running)


async def test_small_requests_of_one_model_do_not_starve_a_large_one_of_another() -> None:
    async with World(needed(1, 500)) as world:
        engine = ScriptedEngine()
        first, second = await world.open(engine), await world.open(ScriptedEngine())
        busy = [first.submit(long(first_id, 60)) for first_id in range(5, 40)]
        large = second.submit(long(90, 490))
        answers = asyncio.gather(*map(read_ids, busy))
        assert await read_ids(large) == expected_ids(long(90, 490))
        assert len(engine.order) < 10
        await answers
