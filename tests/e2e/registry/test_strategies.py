"""Each row of the strategy table, as the waiter, the victim and a bystander see it on their sockets."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferd.v1 import inference_service_pb2
from support.contention import GIB, Client, connected, policy, request, unary
from support.servers import ServerProcess
from support.wire import error_details, facts_of, fields_of, reason_of

LATE = 1.5
"""Seconds that a shared machine may add."""


async def seconds_until_refused(client: Client, model: str, **options: object) -> tuple[float, grpc.aio.AioRpcError]:
    answer = client.ask(model, **options)
    error = await answer.error()
    return answer.seconds, error


def assert_no_room(error: grpc.aio.AioRpcError, model: str, *blocking: str) -> None:
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error) == "CAPACITY_EXHAUSTED"
    assert facts_of(error) == {
        "model": model,
        "blocking_models": ",".join(blocking),
        "required_bytes": str(GIB),
        "charged_bytes": str(GIB),
        "limit_bytes": str(GIB * 3 // 2),
    }
    details = error_details(error)
    assert details["RetryInfo"].retry_delay.ToNanoseconds() > 0
    assert details["QuotaFailure"].violations


# --- idle models make room under every strategy, and nothing else is touched ---------------------------------------


@pytest.mark.parametrize("strategy", ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"])
async def test_an_idle_model_makes_room_whatever_the_strategy(client: Client, strategy: str) -> None:
    await client.answer("a")
    await client.answer("small")
    output = await client.answer("b", contention=policy(strategy))
    assert len(output.ids) == 8
    assert output.finished.preemptions == 0
    states = await client.states()
    assert (states["a"], states["b"], states["small"]) == ("UNLOADED", "LOADED", "LOADED")


# --- fail -------------------------------------------------------------------------------------------------------------


async def test_fail_is_refused_at_once_and_nothing_is_evicted_in_vain(client: Client) -> None:
    victim = await client.run("a")
    await client.answer("small")  # idle: evicting it would not be enough
    seconds, error = await seconds_until_refused(client, "b", contention=policy("fail"))
    assert seconds < LATE
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error) == "CAPACITY_EXHAUSTED"
    facts = facts_of(error)
    assert facts["blocking_models"] == "a"
    assert int(facts["charged_bytes"]) == GIB + GIB // 4
    states = await client.states()
    assert (states["a"], states["small"], states["b"]) == ("LOADED", "LOADED", "UNLOADED")
    await victim.tokens(len(victim.output.ids) + 5)


async def test_fail_names_what_is_in_the_way(client: Client) -> None:
    await client.run("a")
    _, error = await seconds_until_refused(client, "b", contention=policy("fail"))
    assert_no_room(error, "b", "a")


async def test_fail_joins_a_load_already_under_way(client: Client) -> None:
    first = client.ask("slow-load-x", waiting_events=True)
    await first.waits("LOADING")
    joined = await client.answer("slow-load-x", contention=policy("fail"))
    assert joined.ids == (await first.result()).ids
    assert joined.started.model.load_generation == first.output.started.model.load_generation


# --- wait -------------------------------------------------------------------------------------------------------------


async def test_wait_goes_on_until_the_victim_ends_by_itself(client: Client) -> None:
    victim = client.ask("a", 150)
    await victim.tokens(1)
    waiter = client.ask("b", contention=policy("wait"))
    bystander = await client.answer("a")  # a is LOADED: it waits for nobody
    assert len(bystander.ids) == 8
    assert not waiter.is_over
    output = await waiter.result()
    assert victim.is_over
    assert (await victim.result()).finished.preemptions == 0
    assert len(output.ids) == 8


async def test_wait_ends_with_the_deadline_of_the_call(client: Client) -> None:
    await client.run("a")
    waiter = client.ask("b", contention=policy("wait", wait_timeout=0.1), timeout=0.5)
    error = await waiter.error()
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert waiter.seconds >= 0.45
    await client.until_state("b", "UNLOADED")


async def test_wait_ends_by_cancel_generation(client: Client, other: Client) -> None:
    await client.run("a")
    waiter = client.ask("b", contention=policy("wait"), request_id="waiter", waiting_events=True)
    await waiter.waits("QUEUED")
    assert await other.cancel("waiter")
    error = await waiter.error()
    assert reason_of(error) == "CANCELLED_BY_REQUEST"
    await client.until_state("b", "UNLOADED")


# --- preempt ----------------------------------------------------------------------------------------------------------


async def test_preempt_interrupts_at_once_and_the_victim_goes_on_afterwards(client: Client) -> None:
    alone = await client.answer("a", 120)
    victim = client.ask("a", 120)
    await victim.tokens(10)
    preemptor = client.ask("b", contention=policy("preempt"))
    output = await preemptor.result()
    assert len(output.ids) == 8
    assert not victim.is_over
    finished = await victim.result()
    assert finished.ids == alone.ids
    assert finished.finished.preemptions == 1


async def test_preempt_fails_at_once_when_the_way_is_blocked_for_good(client: Client) -> None:
    victim = await client.run("a", preemptible=False)
    seconds, error = await seconds_until_refused(client, "b", contention=policy("preempt"))
    assert seconds < LATE
    assert_no_room(error, "b", "a")
    await victim.tokens(len(victim.output.ids) + 5)


async def test_preempt_leaves_pinned_models_alone(client: Client) -> None:
    await client.load("a", pin=True)
    seconds, error = await seconds_until_refused(client, "b", contention=policy("preempt"))
    assert seconds < LATE
    assert_no_room(error, "b", "a")
    assert await client.state("a") == "LOADED"
    await client.load("a", pin=False)
    assert len((await client.answer("b", contention=policy("preempt"))).ids) == 8


# --- wait_then_fail ---------------------------------------------------------------------------------------------------


async def test_wait_then_fail_gives_up_at_its_own_edge(client: Client) -> None:
    victim = await client.run("a")
    seconds, error = await seconds_until_refused(client, "b", contention=policy("wait_then_fail", wait_timeout=0.5))
    assert 0.5 <= seconds < 0.5 + LATE
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error) == "WAIT_TIMEOUT"
    facts = facts_of(error)
    assert facts["model"] == "b"
    assert 500 <= int(facts["waited_ms"]) < 500 + 1000 * LATE
    assert facts["queue_position"] == "0"
    assert error_details(error)["RetryInfo"].retry_delay.ToNanoseconds() > 0
    await victim.tokens(len(victim.output.ids) + 5)


async def test_wait_then_fail_is_served_when_room_comes_in_time(client: Client) -> None:
    victim = client.ask("a", 100)
    await victim.tokens(1)
    assert len((await client.answer("b", contention=policy("wait_then_fail", wait_timeout=20))).ids) == 8
    assert (await victim.result()).finished.preemptions == 0


async def test_a_load_under_way_is_not_cut_by_the_wait_for_room(client: Client) -> None:
    output = await client.answer("slow-load-x", contention=policy("wait_then_fail", wait_timeout=0.2))
    assert len(output.ids) == 8


# --- wait_then_preempt ------------------------------------------------------------------------------------------------


async def test_wait_then_preempt_preempts_at_its_edge(client: Client) -> None:
    alone = await client.answer("a", 250)
    victim = client.ask("a", 250)
    await victim.tokens(1)
    waiter = client.ask("b", contention=policy("wait_then_preempt", preempt_after=0.5, wait_timeout=20))
    await waiter.result()
    assert 0.5 <= waiter.started_after < 0.5 + LATE
    assert not victim.is_over
    finished = await victim.result()
    assert finished.finished.preemptions == 1
    assert finished.ids == alone.ids


async def test_wait_then_preempt_gives_up_at_its_timeout(client: Client) -> None:
    victim = await client.run("a", preemptible=False)
    contention = policy("wait_then_preempt", preempt_after=0.2, wait_timeout=0.6)
    seconds, error = await seconds_until_refused(client, "b", contention=contention)
    assert 0.6 <= seconds < 0.6 + LATE
    assert reason_of(error) == "WAIT_TIMEOUT"
    await victim.tokens(len(victim.output.ids) + 5)


async def test_a_wait_that_ends_in_time_preempts_nobody(client: Client) -> None:
    victim = client.ask("a", 60)
    await victim.tokens(1)
    await client.answer("b", contention=policy("wait_then_preempt", preempt_after=15, wait_timeout=20))
    assert (await victim.result()).finished.preemptions == 0


# --- never ------------------------------------------------------------------------------------------------------------


async def test_a_loaded_model_waits_for_no_other_models_load(client: Client) -> None:
    await client.answer("small")
    loading = client.ask("slow-load-x", waiting_events=True)
    await loading.waits("LOADING")
    assert len((await client.answer("small", 2)).ids) == 2
    assert not loading.is_over
    await loading.result()


async def test_load_if_needed_false_is_refused_where_the_model_is_not_resident(client: Client) -> None:
    _, error = await seconds_until_refused(client, "b", load_if_needed=False)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(error) == "MODEL_NOT_LOADED"
    await client.load("b")
    assert len((await client.answer("b", load_if_needed=False)).ids) == 8


async def test_the_highest_priority_waiter_comes_first(client: Client) -> None:
    victim = client.ask("a", 150)
    await victim.tokens(1)
    low = client.ask("b", 2, contention=policy("wait"), waiting_events=True)
    await low.waits("QUEUED")
    high = client.ask("c", 2, contention=policy("wait"), priority=50, waiting_events=True)
    await high.waits("QUEUED")
    await low.until(lambda output: output.waiting[-1][2] == 1)
    await asyncio.gather(low.result(), high.result())
    assert high.started_after + 0.001 < low.started_after


async def test_the_victim_of_lowest_priority_is_chosen(two_places: ServerProcess) -> None:
    async with connected(two_places) as client:
        higher = await client.run("a", priority=1)
        lower = client.ask("b", 100, priority=0)
        await lower.tokens(3)
        await client.answer("c", contention=policy("preempt"))
        assert (await lower.result()).finished.preemptions == 1  # resumed when c was idle
        assert await client.state("a") == "LOADED"
        await higher.tokens(len(higher.output.ids) + 3)


# --- what a server says by default ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_default(start_server: Any) -> Iterator[dict[str, ServerProcess]]:
    """A server for each default strategy; requests may ask for `fail` alone."""

    def start(strategy: str) -> ServerProcess:
        contention = {"strategy": strategy, "wait_timeout_s": 1.2, "preempt_after_s": 0.4}
        manager = {"contention_policy": contention, "request_overrides": ["fail"]}
        return start_server(manager=manager, models=start_server.entries("a", "b"), stack=stack)

    strategies = ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        yield dict(zip(strategies, pool.map(start, strategies), strict=True))


@pytest.mark.parametrize(
    ("strategy", "outcome", "at"),
    [
        ("fail", "CAPACITY_EXHAUSTED", 0.0),
        ("wait", "DEADLINE_EXCEEDED", 2.0),
        ("preempt", "served", 0.0),
        ("wait_then_fail", "WAIT_TIMEOUT", 1.2),
        ("wait_then_preempt", "served", 0.4),
    ],
)
async def test_the_servers_default_holds_for_a_request_that_says_nothing(
    by_default: dict[str, ServerProcess], strategy: str, outcome: str, at: float
) -> None:
    async with connected(by_default[strategy]) as client:
        victim = await client.run("a")
        waiter = client.ask("b", timeout=2.0 if strategy == "wait" else None)
        if outcome == "served":
            await waiter.result()
            seconds = waiter.started_after
        else:
            error = await waiter.error()
            seconds = waiter.seconds
            assert outcome == (error.code().name if strategy == "wait" else reason_of(error))
            await victim.tokens(len(victim.output.ids) + 3)
        assert at * 0.98 <= seconds < at + LATE


async def test_a_strategy_that_is_not_on_the_list_is_denied_before_the_model_is_looked_for(
    by_default: dict[str, ServerProcess],
) -> None:
    async with connected(by_default["wait_then_fail"]) as client:
        for model in ("b", "nobody"):
            error = await client.ask(model, contention=policy("preempt")).error()
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert reason_of(error) == "STRATEGY_DENIED"
            assert facts_of(error)["allowed_strategies"] == "fail"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.load("b", contention=policy("wait"))
        assert reason_of(caught.value) == "STRATEGY_DENIED"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.inference.Generate(unary(request("b", contention=policy("wait"))))
        assert reason_of(caught.value) == "STRATEGY_DENIED"
        assert await client.state("b") == "UNLOADED"


async def test_times_are_capped_by_the_servers_own(by_default: dict[str, ServerProcess]) -> None:
    async with connected(by_default["wait_then_fail"]) as client:
        error = await client.ask("b", contention=policy("wait_then_fail", wait_timeout=1.3)).error()
        assert fields_of(error) == ["scheduling.contention.wait_timeout"]
        await client.run("a")
        waiter = client.ask("b", contention=policy(wait_timeout=0.3))  # shorter is allowed, strategy unset
        assert reason_of(await waiter.error()) == "WAIT_TIMEOUT"
        assert 0.3 <= waiter.seconds < 1.2
    async with connected(by_default["wait_then_preempt"]) as client:
        error = await client.ask("b", contention=policy("wait_then_preempt", preempt_after=0.0)).error()
        assert fields_of(error) == ["scheduling.contention.preempt_after"]


async def test_the_server_tells_its_policy(by_default: dict[str, ServerProcess]) -> None:
    async with connected(by_default["wait_then_preempt"]) as client:
        info = await client.inference.GetServerInfo(inference_service_pb2.GetServerInfoRequest())
        assert info.default_contention == policy("wait_then_preempt", wait_timeout=1.2, preempt_after=0.4)
        assert list(info.allowed_contention_strategies) == [policy("fail").strategy]


async def test_a_model_whose_measure_exceeds_the_budget_is_refused_and_its_bytes_come_back(
    start_server: Any, folders: dict[str, Path]
) -> None:
    stated = 64 * 1024 / GIB  # its weights take about 420 KiB, known only after the load
    models = [{"name": "liar", "path": folders["a"], "estimated_memory_gb": stated}]
    with ExitStack() as stack:
        server = start_server(models=models, budget_gb=2 * stated, stack=stack)
        async with connected(server) as client:
            error = await client.ask("liar").error()
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert reason_of(error) == "MODEL_TOO_LARGE"
            facts = facts_of(error)
            assert int(facts["required_bytes"]) > int(facts["limit_bytes"]) == 2 * 64 * 1024
            assert (await client.settled()).memory.used_bytes == 0
