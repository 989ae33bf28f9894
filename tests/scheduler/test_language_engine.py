"""The scheduler over the real language engine: the same tokens as mlx-lm alone, whoever comes and goes."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from fakes.engine import ScriptedLoading
from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.core.model import EngineSettings, Interrupted
from inferd_server.engine.device import end_thread
from inferd_server.engine.language import open_language_engine
from inferd_server.scheduler import Scheduler
from support.streams import eventually, read_ids, read_until_error

PROMPTS = [tuple((7 + 31 * i + j * j) % 250 + 7 for j in range(3 + 17 * i % 90)) for i in range(6)]
LENGTH = 120


def greedy(prompt: tuple[int, ...], max_tokens: int, emitted: tuple[int, ...] = ()) -> DecodeRequest:
    return DecodeRequest(prompt, Sampling(0.0), max_tokens, emitted_ids=emitted)


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> dict[tuple[int, ...], list[int]]:
    """LENGTH greedy tokens behind each prompt, from mlx-lm by itself."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model, _ = load_model(tiny_model)
    return {
        prompt: [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=LENGTH)]
        for prompt in PROMPTS
    }


@pytest.fixture
async def scheduler(tiny_model: Path) -> AsyncIterator[Scheduler]:
    def on_death(error: Exception) -> None:
        raise AssertionError(error)

    settings = EngineSettings("tiny", tiny_model, max_batch_size=8, prefill_step_size=32)
    opened = await Scheduler.open(settings, ScriptedLoading(), open_language_engine, on_death, end_thread=end_thread)
    yield opened
    await opened.close()


async def test_streamed_tokens_equal_mlx_lm_alone(
    scheduler: Scheduler, alone: dict[tuple[int, ...], list[int]]
) -> None:
    for prompt, ids in alone.items():
        assert await read_ids(scheduler.submit(greedy(prompt, LENGTH))) == ids
    assert scheduler.weights_nbytes > 0


async def test_tokens_are_the_same_while_neighbours_join_and_leave(
    scheduler: Scheduler, alone: dict[tuple[int, ...], list[int]]
) -> None:
    dice = random.Random(5)

    async def neighbour() -> None:
        stream = scheduler.submit(greedy(dice.choice(PROMPTS), dice.randint(1, 60)))
        async with aclosing(stream):
            for _ in range(dice.randint(0, 4)):
                await anext(stream, [])

    async def watched(prompt: tuple[int, ...]) -> None:
        await asyncio.sleep(dice.random() / 50)
        assert await read_ids(scheduler.submit(greedy(prompt, 60))) == alone[prompt][:60]

    await asyncio.gather(*map(watched, PROMPTS), *(neighbour() for _ in range(20)))
    assert (scheduler.statistics().running, scheduler.statistics().waiting) == (0, 0)


async def test_interrupted_sequences_go_on_with_the_same_tokens(
    scheduler: Scheduler, alone: dict[tuple[int, ...], list[int]]
) -> None:
    prompt, ids = PROMPTS[3], []
    for _ in range(3):
        stream = scheduler.submit(greedy(prompt, LENGTH - len(ids), tuple(ids)))
        first = await anext(stream)
        scheduler.interrupt("rival")
        more, error = await read_until_error(stream)
        assert isinstance(error, Interrupted)
        ids += [*(token.token_id for token in first), *more]
        scheduler.resume()
    assert 3 <= len(ids) < LENGTH
    assert [*ids, *await read_ids(scheduler.submit(greedy(prompt, LENGTH - len(ids), tuple(ids))))] == alone[prompt]


async def test_two_hundred_random_cancels_leave_nothing_behind(
    scheduler: Scheduler, alone: dict[tuple[int, ...], list[int]]
) -> None:
    dice = random.Random(2)

    async def one() -> None:
        prompt = dice.choice(PROMPTS)
        count = dice.randint(1, 60)
        assert await read_ids(scheduler.submit(greedy(prompt, count))) == alone[prompt][:count]

    tasks = [asyncio.ensure_future(one()) for _ in range(200)]
    for task in dice.sample(tasks, len(tasks)):
        await asyncio.sleep(dice.choice((0, 0.001, 0.005)))
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() or task.exception() is None for task in tasks)
    statistics = scheduler.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    await eventually(lambda: scheduler.statistics().step_age_seconds == 0)
    assert scheduler.statistics().cache_nbytes == 0
    assert await read_ids(scheduler.submit(greedy(PROMPTS[0], 60))) == alone[PROMPTS[0]][:60]
