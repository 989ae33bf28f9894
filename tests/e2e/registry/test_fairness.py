"""Nobody starves, however steady the traffic of the rival; and swaps are bounded."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from inferd.v1 import model_service_pb2
from support.contention import Client, connected, policy, state_of
from support.servers import ServerProcess

DRAIN_BUSY_AFTER = 0.6
MIN_RESIDENCY = 0.5
LATE = 1.5


@pytest.fixture(scope="module")
def fair(start_server: Any) -> ServerProcess:
    """Room for one of three; rivals drain after 0.6 s, and a model stays 0.5 s."""
    return start_server(manager={"drain_busy_after_s": DRAIN_BUSY_AFTER, "min_residency_s": MIN_RESIDENCY})


@pytest.fixture
async def client(fair: ServerProcess) -> AsyncIterator[Client]:
    async with connected(fair) as client:
        yield client


class Traffic:
    """Requests to one model, one always begun before the last has ended."""

    def __init__(self, client: Client, model: str, tokens: int) -> None:
        self._client, self._model, self._tokens = client, model, tokens
        self.served = 0
        self.preemptions = 0
        self.longest_running = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def _one(self) -> None:
        answer = self._client.ask(self._model, self._tokens, contention=policy("wait"))
        output = await answer.result(60)
        self.served += 1
        self.preemptions += output.finished.preemptions
        self.longest_running = max(self.longest_running, answer.seconds - answer.started_after)

    async def flow(self, every_seconds: float) -> None:
        """Until cancelled; then what runs is awaited."""
        try:
            while True:
                self._tasks.add(asyncio.create_task(self._one()))
                await asyncio.sleep(every_seconds)
        finally:
            await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("strategy", ["wait", "wait_then_fail"])
async def test_under_steady_traffic_the_rival_is_served_within_its_bound(client: Client, strategy: str) -> None:
    traffic = Traffic(client, "a", 100)
    flow = asyncio.create_task(traffic.flow(0.2))
    try:
        await asyncio.sleep(1.0)
        async with asyncio.timeout(20):
            while not (await client.model("a")).running_requests:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.005)
        waiter = client.ask("b", contention=policy(strategy))
        output = await waiter.result()
        load_seconds = output.finished.timing.load.ToNanoseconds() / 1e9
        bound = DRAIN_BUSY_AFTER + traffic.longest_running + load_seconds + LATE
        assert DRAIN_BUSY_AFTER <= waiter.started_after < bound
    finally:
        flow.cancel()
        await asyncio.wait([flow])
    assert traffic.served > 5
    assert traffic.preemptions == 0  # drained, not interrupted


async def test_while_draining_new_requests_queue_behind_the_head_and_running_ones_finish(client: Client) -> None:
    victim = client.ask("a", 500)
    await victim.tokens(1)
    head = client.ask("b", 20, contention=policy("wait"), waiting_events=True)
    await client.until_state("a", "DRAINING")
    late = client.ask("a", 5, contention=policy("wait"))
    await head.waits("EVICTING")  # memory is being freed for it
    assert not victim.is_over
    await late.result()
    assert (await victim.result()).finished.preemptions == 0
    assert head.is_over
    await head.result()


async def test_a_waiter_that_leaves_ends_the_drain_it_caused(client: Client) -> None:
    victim = await client.run("a")
    head = client.ask("b", contention=policy("wait"))
    await client.until_state("a", "DRAINING")
    late = client.ask("a", 5, contention=policy("wait"))
    await asyncio.sleep(0.05)
    assert late.output.started is None
    await head.leave()
    await late.result()
    assert not victim.is_over
    assert await client.state("a") == "LOADED"


async def test_three_models_that_preempt_each_other_all_complete_and_swaps_are_bounded(client: Client) -> None:
    right = {name: (await client.answer(name, 100)).ids for name in "abc"}
    await client.clear()
    swaps: list[float] = []
    served = dict.fromkeys("abc", 0)
    ends_at = time.monotonic() + 5.0

    async def contend(name: str) -> None:
        while time.monotonic() < ends_at:
            output = await client.ask(name, 100, contention=policy("preempt")).result(60)
            assert output.ids == right[name]
            served[name] += 1

    async def count() -> None:
        watch = client.models.WatchModels(model_service_pb2.WatchModelsRequest())
        async for message in watch:
            if message.WhichOneof("event") == "changed" and state_of(message.changed) == "LOADED":
                swaps.append(message.changed.state_time.ToNanoseconds() / 1e9)

    counting = asyncio.create_task(count())
    begun = time.monotonic()
    await asyncio.gather(*(contend(name) for name in "abc"))
    seconds = time.monotonic() - begun
    counting.cancel()
    await asyncio.wait([counting])
    assert all(count >= 1 for count in served.values()), served
    loads = sorted(set(swaps))
    assert len(loads) >= 3
    assert len(loads) <= seconds / MIN_RESIDENCY + 1
    gaps = [later - earlier for earlier, later in pairwise(loads)]
    assert min(gaps) >= MIN_RESIDENCY


async def test_young_models_are_left_alone_until_their_time_and_then_at_once(client: Client) -> None:
    await client.answer("a", 2)
    since = (await client.model("a")).state_time.ToNanoseconds() / 1e9
    waiter = client.ask("b", 2, contention=policy("preempt"))
    await waiter.result()
    loaded = (await client.model("b")).state_time.ToNanoseconds() / 1e9
    assert MIN_RESIDENCY <= loaded - since < MIN_RESIDENCY + LATE


async def test_work_for_one_model_is_collated(client: Client) -> None:
    """Requests for two models by turns, all at once: two loads are enough."""
    victim = client.ask("a", 50)
    await victim.tokens(1)
    before = {name: (await client.model(name)).load_generation for name in "bc"}
    answers = [client.ask(name, 5, contention=policy("wait")) for name in "bcbcbcbc"]
    for answer in answers:
        await answer.result()
    after = {name: (await client.model(name)).load_generation for name in "bc"}
    assert {name: after[name] - before[name] for name in "bc"} == {"b": 1, "c": 1}
