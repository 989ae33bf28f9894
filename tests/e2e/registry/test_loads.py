"""Loads belong to the registry: one for all who wait, whoever leaves; and a failure is everybody's, typed."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from support import tiny_llama
from support.contention import GIB, Client, check_ledger, connected, policy
from support.servers import ServerProcess
from support.wire import error_details, facts_of, reason_of

SLOW = "slow-load-x"


# --- one load for everybody -------------------------------------------------------------------------------------------


async def test_two_waiters_share_one_load(client: Client) -> None:
    before = (await client.model(SLOW)).load_generation
    first, second = client.ask(SLOW), client.ask(SLOW)
    one, two = await first.result(), await second.result()
    assert one.ids == two.ids
    assert one.started.model.load_generation == two.started.model.load_generation == before + 1


async def test_one_waiter_leaving_changes_nothing_for_the_other(client: Client, other: Client) -> None:
    before = (await client.model(SLOW)).load_generation
    leaver = other.ask(SLOW, waiting_events=True)
    stayer = client.ask(SLOW, waiting_events=True)
    await leaver.waits("LOADING")
    await leaver.leave()
    output = await stayer.result()
    assert output.started.model.load_generation == before + 1
    assert (await client.model(SLOW)).load_generation == before + 1


async def test_a_load_that_nobody_waits_for_any_more_is_finished(client: Client) -> None:
    leaver = client.ask(SLOW, waiting_events=True)
    await leaver.waits("LOADING")
    await leaver.leave()
    assert await client.state(SLOW) == "LOADING"
    await client.until_state(SLOW, "LOADED")
    listed = await client.settled()
    assert listed.memory.used_bytes == GIB


async def test_a_load_that_nobody_waits_for_is_abandoned_when_its_room_is_needed(client: Client) -> None:
    leaver = client.ask(SLOW, waiting_events=True)
    await leaver.waits("LOADING")
    await leaver.leave()
    output = await client.answer("b")
    assert len(output.ids) == 8
    model = await client.model(SLOW)
    assert not model.HasField("last_error")
    assert await client.state(SLOW) == "UNLOADED"


async def test_a_queued_load_without_tickets_is_dropped(client: Client) -> None:
    await client.run("a")
    waiter = client.ask("b", contention=policy("wait"), waiting_events=True)
    await waiter.waits("QUEUED")
    assert await client.state("b") == "QUEUED"
    before = (await client.model("b")).load_generation
    await waiter.leave()
    await client.until_state("b", "UNLOADED")
    assert (await client.model("b")).load_generation == before


async def test_a_killed_connection_in_the_midst_of_a_load_wedges_nothing(client: Client, other: Client) -> None:
    answer = other.ask(SLOW, waiting_events=True)
    await answer.waits("LOADING")
    await other.channel.close()
    assert len((await client.answer(SLOW)).ids) == 8


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing(
    start_server: Any, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Room for two; one model's warm-up fails, one's load hangs while the file `stuck` exists (load_timeout 3 s)."""
    stuck = tmp_path_factory.mktemp("stuck") / "stuck"
    models = [
        *start_server.entries("a", "b"),
        {"name": "broken-warmup", "path": folders["c"], "estimated_memory_gb": 1},
        {"name": "stuck-load", "path": folders["d"], "estimated_memory_gb": 1},
        {"name": "mendable", "path": tiny_llama.build(stuck.parent / "mendable", seed=9), "estimated_memory_gb": 1},
    ]
    with ExitStack() as stack:
        server = start_server(
            budget_gb=2.5,
            models=models,
            manager={"load_timeout_s": 3.0},
            stack=stack,
            INFERD_TEST_STUCK=str(stuck),
        )
        server.stuck = stuck
        server.mendable = stuck.parent / "mendable" / "model.safetensors"
        yield server


async def test_a_failed_load_is_told_to_every_waiter_and_its_bytes_come_back(failing: ServerProcess) -> None:
    async with connected(failing) as client:
        await client.answer("a")
        answers = [client.ask("broken-warmup") for _ in range(3)]
        errors = [await answer.error() for answer in answers]
        loads = client.load("broken-warmup")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loads
        for error in [*errors, caught.value]:
            assert error.code() is grpc.StatusCode.INTERNAL
            assert reason_of(error) == "MODEL_LOAD_FAILED"
            assert "scripted" not in str(error.details())
        listed = await client.settled()
        assert listed.memory.used_bytes == GIB
        model = await client.model("broken-warmup")
        assert model.last_error.reason == "MODEL_LOAD_FAILED"
        assert model.last_error.HasField("time")
        assert len((await client.answer("a")).ids) == 8


async def test_within_the_backoff_a_request_fails_at_once_and_an_explicit_load_tries_again(
    failing: ServerProcess,
) -> None:
    async with connected(failing) as client:
        weights = failing.mendable.read_bytes()
        failing.mendable.write_bytes(weights[:-1000])
        error = await client.ask("mendable").error()
        assert error.code() is grpc.StatusCode.DATA_LOSS
        assert reason_of(error) == "MODEL_CORRUPT"
        assert facts_of(error)["file"] == "model.safetensors"
        failing.mendable.write_bytes(weights)
        again = client.ask("mendable")
        assert reason_of(await again.error()) == "MODEL_CORRUPT"
        assert again.seconds < 5
        loaded = await client.load("mendable")
        assert not loaded.model.HasField("last_error")
        assert len((await client.answer("mendable")).ids) == 8


async def test_after_the_backoff_a_request_tries_again_by_itself(failing: ServerProcess) -> None:
    async with connected(failing) as client:
        weights = failing.mendable.read_bytes()
        failing.mendable.write_bytes(weights[:-1000])
        await client.ask("mendable").error()
        failed_at = time.monotonic()
        failing.mendable.write_bytes(weights)
        while True:
            answer = client.ask("mendable", 2)
            await asyncio.wait([answer._task])
            if answer._task.exception() is None:
                break
            assert reason_of(await answer.error()) == "MODEL_CORRUPT"
            assert time.monotonic() - failed_at < 10
            await asyncio.sleep(0.05)
        assert time.monotonic() - failed_at >= 0.95
        assert not (await client.model("mendable")).HasField("last_error")


async def test_a_load_that_hangs_is_given_up_and_stays_charged_until_it_really_ended(failing: ServerProcess) -> None:
    async with connected(failing) as client:
        failing.stuck.touch()
        try:
            begun = time.monotonic()
            error = await client.ask("stuck-load").error()
            seconds = time.monotonic() - begun
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert reason_of(error) == "LOAD_TIMEOUT"
            assert error_details(error)["RetryInfo"].retry_delay.ToNanoseconds() > 0
            assert 3.0 <= seconds < 6.0
            listed = await client.list()
            check_ledger(listed)
            assert listed.memory.used_bytes == GIB
            model = await client.model("stuck-load")
            assert model.last_error.reason == "LOAD_TIMEOUT"
            # the other place serves; both others contend for it, since the stuck one is charged
            await client.answer("a")
            await client.answer("b")
            states = await client.states()
            assert (states["a"], states["b"], states["stuck-load"]) == ("UNLOADED", "LOADED", "FAILED")
            held = await client.run("b")
            error = await client.ask("a", contention=policy("fail")).error()
            assert facts_of(error)["blocking_models"] == "b,stuck-load"
            assert facts_of(error)["charged_bytes"] == str(2 * GIB)
            await held.leave()
            again = await client.ask("stuck-load").error()
            assert reason_of(again) == "LOAD_TIMEOUT"
        finally:
            failing.stuck.unlink()
        async with asyncio.timeout(10):
            while (await client.list()).memory.used_bytes != GIB:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        loaded = await client.load("stuck-load")
        assert loaded.model.load_generation == 2
        assert len((await client.answer("stuck-load")).ids) == 8
