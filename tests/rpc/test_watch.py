"""What one watcher is told, on a clock of the test's own."""

import asyncio

import pytest

from fakes.registry import ModelSnapshot, entry, model_snapshot
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import ModelState
from inferd_server.rpc.watch import MAX_PENDING, Watch

A, B = entry("a"), entry("b")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Watch:
    watch = Watch(frozenset(), clock)
    watch.begin((model_snapshot(A), model_snapshot(B)))
    return watch


def loading(progress: float, of: object = A) -> ModelSnapshot:
    return model_snapshot(of, state=ModelState.LOADING, load_progress=progress)


async def silent(watch: Watch) -> bool:
    """Whether nothing is told now."""
    try:
        await asyncio.wait_for(watch.next(), 0.01)
    except TimeoutError:
        return True
    return False


async def test_every_state_is_told_in_order(watch: Watch) -> None:
    states = [ModelState.QUEUED, ModelState.LOADING, ModelState.LOADED]
    for state in states:
        watch.offer(model_snapshot(A, state=state))
    assert [(await watch.next()).state for _ in states] == states


async def test_progress_is_told_at_most_ten_times_a_second_and_then_the_latest(watch: Watch, clock: Clock) -> None:
    watch.offer(loading(0.0))
    await watch.next()
    for percent in range(1, 50):
        watch.offer(loading(percent / 100))
    assert await silent(watch)
    clock.now += 0.1
    assert (await watch.next()).load_progress == 0.49
    assert await silent(watch)


async def test_progress_of_one_model_does_not_hold_back_another(watch: Watch, clock: Clock) -> None:
    for of in (A, B):
        watch.offer(loading(0.0, of))
    assert [(await watch.next()).entry.name for _ in range(2)] == ["a", "b"]
    clock.now += 0.1
    watch.offer(loading(0.5, A))
    assert (await watch.next()).entry.name == "a"
    watch.offer(loading(0.6, A))
    watch.offer(loading(0.5, B))
    assert (await watch.next()).entry.name == "b"


async def test_stale_progress_is_not_told_behind_a_new_state(watch: Watch, clock: Clock) -> None:
    watch.offer(loading(0.0))
    await watch.next()
    watch.offer(loading(0.5))
    watch.offer(model_snapshot(A, state=ModelState.LOADED))
    assert (await watch.next()).state is ModelState.LOADED
    clock.now += 1
    assert await silent(watch)


async def test_what_the_snapshot_told_is_no_change(watch: Watch, clock: Clock) -> None:
    watch.offer(model_snapshot(A, running=1))
    told = await watch.next()
    assert told.running == 1
    assert await silent(watch)


async def test_silence_is_broken_by_a_heartbeat_every_fifteen_seconds(watch: Watch, clock: Clock) -> None:
    clock.now += 14.9
    assert await silent(watch)
    clock.now += 0.1
    assert await watch.next() is None
    clock.now += 10
    watch.offer(model_snapshot(A, state=ModelState.QUEUED))
    assert await watch.next() is not None
    clock.now += 10
    assert await silent(watch)
    clock.now += 5
    assert await watch.next() is None


async def test_news_wake_a_waiting_watcher(watch: Watch) -> None:
    waiter = asyncio.ensure_future(watch.next())
    await asyncio.sleep(0)
    watch.offer(model_snapshot(B, state=ModelState.QUEUED))
    assert (await asyncio.wait_for(waiter, 1)).entry.name == "b"


async def test_a_watcher_that_lags_too_far_is_ended_and_costs_bounded_memory(watch: Watch) -> None:
    for i in range(MAX_PENDING * 3):
        watch.offer(model_snapshot(A, generation=i + 1))
    assert len(watch._changes) == MAX_PENDING + 1
    with pytest.raises(InferdError) as caught:
        await watch.next()
    assert caught.value.reason is Reason.SLOW_CONSUMER
