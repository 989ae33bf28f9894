"""LoadModel: detach, validate_only, pin, reload, aliases, names, preloads."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from support import tiny_llama
from support.contention import GIB, Client, connected, policy, state_of
from support.servers import write_config
from support.wire import facts_of, reason_of

SLOW = "slow-load-x"


async def test_a_load_returns_the_loaded_model_what_it_evicted_and_the_budget(client: Client) -> None:
    await client.answer("a")
    loaded = await client.load("b")
    assert state_of(loaded.model) == "LOADED"
    assert loaded.model.load_progress == 1.0
    assert list(loaded.evicted_models) == ["a"]
    assert loaded.HasField("load_time")
    assert loaded.memory.used_bytes == GIB
    assert loaded.memory.reserved_bytes == 0
    again = await client.load("b")
    assert not again.HasField("load_time")
    assert list(again.evicted_models) == []
    assert again.model.load_generation == loaded.model.load_generation


async def test_a_detached_load_returns_at_once_and_goes_on(client: Client) -> None:
    answer = await client.load(SLOW, detach=True, timeout=0.5)
    assert state_of(answer.model) in {"QUEUED", "LOADING"}
    await client.until_state(SLOW, "LOADED")


async def test_a_detached_load_waits_for_room_though_its_client_has_left(client: Client, other: Client) -> None:
    await client.run("a")
    answer = await other.load("b", detach=True, contention=policy("wait"))
    assert state_of(answer.model) == "QUEUED"
    await other.channel.close()
    await client._answers[0].leave()
    await client.until_state("b", "LOADED")


async def test_any_number_of_detached_loads_of_a_model_wait_as_one(client: Client) -> None:
    running = await client.run("a")
    for _ in range(50):
        await client.load("b", detach=True, contention=policy("wait"))
    assert (await client.model("b")).waiting_requests == 1
    await running.leave()
    await client.until_state("b", "LOADED")


async def test_a_detached_load_of_a_loaded_model_says_so(client: Client) -> None:
    await client.load("a")
    assert state_of((await client.load("a", detach=True)).model) == "LOADED"


async def test_loads_of_one_model_are_one(client: Client) -> None:
    before = (await client.model(SLOW)).load_generation
    answers = await asyncio.gather(*[client.load(SLOW) for _ in range(4)], client.load("slow"))
    assert {answer.model.load_generation for answer in answers} == {before + 1}


async def test_a_caller_that_gives_up_ends_its_wait_and_not_the_load(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.load(SLOW, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await client.until_state(SLOW, "LOADED")


async def test_a_load_can_preempt_and_can_fail(client: Client) -> None:
    alone = await client.answer("a", 100)
    victim = client.ask("a", 100)
    await victim.tokens(5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.load("b", contention=policy("fail"))
    assert reason_of(caught.value) == "CAPACITY_EXHAUSTED"
    loaded = await client.load("b", contention=policy("preempt"))
    assert list(loaded.evicted_models) == ["a"]
    output = await victim.result()
    assert output.ids == alone.ids
    assert output.finished.preemptions == 1


# --- validate_only ----------------------------------------------------------------------------------------------------


async def test_validate_only_tells_what_would_be_evicted_and_changes_nothing(client: Client) -> None:
    await client.answer("small")
    await client.answer("a")
    before = await client.list()
    answer = await client.load("b", validate_only=True)
    assert answer.fits
    assert list(answer.evicted_models) == ["a"]  # not `small`, which is older: the fit does not need it
    assert answer.missing_bytes == 0
    assert list(answer.blocking_models) == []
    assert await client.list() == before


async def test_validate_only_tells_what_is_missing_and_who_blocks(client: Client) -> None:
    await client.load("small", pin=True)
    await client.run("a")
    answer = await client.load("b", validate_only=True, contention=policy("wait"))
    assert not answer.fits
    assert answer.missing_bytes == GIB - (GIB // 2 - GIB // 4)
    assert list(answer.blocking_models) == ["a", "small"]
    assert list(answer.evicted_models) == []
    preempting = await client.load("b", validate_only=True, contention=policy("preempt"))
    assert preempting.fits
    assert list(preempting.evicted_models) == ["a"]
    assert await client.state("b") == "UNLOADED"
    await client.load("small", pin=False)  # a pin outlives an unload


async def test_validate_only_of_a_loaded_model_fits(client: Client) -> None:
    await client.load("a")
    answer = await client.load("a", validate_only=True)
    assert answer.fits
    assert state_of(answer.model) == "LOADED"


# --- pin --------------------------------------------------------------------------------------------------------------


async def test_a_pin_blocks_eviction_and_if_idle_but_neither_drain_nor_force(client: Client) -> None:
    for mode in ("DRAIN", "FORCE"):
        loaded = await client.load("a", pin=True)
        assert loaded.model.pinned
        assert reason_of(await client.ask("b", contention=policy("fail")).error()) == "CAPACITY_EXHAUSTED"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.unload("a", "IF_IDLE")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert reason_of(caught.value) == "MODEL_PINNED"
        assert state_of((await client.unload("a", mode)).model) == "UNLOADED"
    assert not (await client.load("a", pin=False)).model.pinned


# --- reload -----------------------------------------------------------------------------------------------------------


def put_weights(folder: Path, weights: bytes) -> None:
    """Replace a model's weights as a careful person does: by a new file, since the loaded one may be mapped."""
    new = folder / "new"
    new.write_bytes(weights)
    new.rename(folder / "model.safetensors")


@pytest.mark.parametrize("budget_gb", [2.5, 1.5], ids=["both fit", "both do not fit"])
async def test_a_reload_takes_over_with_the_new_weights_and_the_running_request_ends_on_the_old_ones(
    start_server: Any, folders: dict[str, Path], tmp_path: Path, budget_gb: float
) -> None:
    folder = tiny_llama.build(tmp_path / "model", seed=20)
    models = [{"name": "m", "path": folder, "estimated_memory_gb": 1}]
    with ExitStack() as stack:
        server = start_server(models=models, budget_gb=budget_gb, stack=stack)
        async with connected(server) as client:
            old = await client.answer("m", 200)
            running = client.ask("m", 200)
            await running.tokens(5)
            put_weights(folder, (folders["b"] / "model.safetensors").read_bytes())
            reloading = asyncio.create_task(client.load("m", reload=True))
            if budget_gb > 2:
                loaded = await reloading
                fresh = await client.answer("m", 20)
                assert not running.is_over
                assert loaded.memory.used_bytes in {2 * GIB, GIB}
            else:
                await client.until_state("m", "DRAINING")
                fresh = await client.answer("m", 20)  # waits for the new generation
                assert running.is_over
                loaded = await reloading
            assert loaded.model.load_generation == fresh.started.model.load_generation == 2
            assert fresh.ids != old.ids[:20]
            output = await running.result()
            assert output.ids == old.ids
            assert output.started.model.load_generation == 1
            assert output.finished.preemptions == 0
            listed = await client.settled()
            assert listed.memory.used_bytes == GIB


async def test_a_reload_that_fails_leaves_the_old_generation_serving(start_server: Any, tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "model", seed=20)
    models = [{"name": "m", "path": folder, "estimated_memory_gb": 1}]
    with ExitStack() as stack:
        server = start_server(models=models, budget_gb=2.5, stack=stack)
        async with connected(server) as client:
            old = await client.answer("m", 10)
            put_weights(folder, (folder / "model.safetensors").read_bytes()[:-999])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.load("m", reload=True)
            assert reason_of(caught.value) == "MODEL_CORRUPT"
            assert (await client.answer("m", 10)).ids == old.ids
            model = await client.model("m")
            assert state_of(model) == "LOADED"
            assert model.last_error.reason == "MODEL_CORRUPT"
            assert (await client.settled()).memory.used_bytes == GIB


async def test_a_reload_of_a_model_that_is_not_resident_just_loads_it(client: Client) -> None:
    before = (await client.model("a")).load_generation
    assert (await client.load("a", reload=True)).model.load_generation == before + 1


# --- sizes ------------------------------------------------------------------------------------------------------------


async def test_an_unstated_size_is_measured_again_at_each_load(start_server: Any, tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "model", seed=20)
    with ExitStack() as stack:
        server = start_server(models=[{"name": "m", "path": folder}], budget_gb=0.005, stack=stack)
        async with connected(server) as client:
            small = (await client.load("m")).model.memory
            assert small.charged_bytes == small.estimated_bytes == small.weights_bytes
            await client.unload("m")
            tiny_llama.build(folder, layers=4, hidden=128, seed=20)
            larger = (await client.load("m")).model.memory
            assert larger.charged_bytes == larger.estimated_bytes == larger.weights_bytes > 2 * small.charged_bytes
            await client.unload("m")
            tiny_llama.build(folder, layers=8, hidden=256, seed=20)  # 25 MB
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.load("m")
            assert reason_of(caught.value) == "MODEL_TOO_LARGE"
            assert int(facts_of(caught.value)["required_bytes"]) > int(facts_of(caught.value)["limit_bytes"])
            assert state_of(await client.model("m")) == "FAILED"


# --- names ------------------------------------------------------------------------------------------------------------


async def test_an_alias_is_served_by_its_model_under_the_models_name(client: Client) -> None:
    output = await client.answer("slow")
    assert output.started.model.name == SLOW
    assert output.started.model.load_generation == (await client.model(SLOW)).load_generation
    assert (await client.model("slow")).name == SLOW
    assert list((await client.model("slow")).aliases) == ["slow"]
    assert (await client.unload("slow")).model.name == SLOW


async def test_the_stated_revision_is_told_else_a_digest(client: Client) -> None:
    assert (await client.answer("small")).started.model.revision == "r7"
    assert len((await client.model("a")).revision) >= 8


async def test_an_unknown_name_is_never_served_by_another_model(client: Client) -> None:
    await client.answer("a")
    error = await client.ask("A").error()
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(error) == "MODEL_NOT_FOUND"
    assert set(facts_of(error)["configured_models"].split(",")) >= {"a", "b", "c", SLOW, "small"}
    for call in (client.load("A"), client.unload("A"), client.model("A")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert reason_of(caught.value) == "MODEL_NOT_FOUND"


# --- preloads ---------------------------------------------------------------------------------------------------------


async def test_preloads_are_loaded_before_the_server_is_ready_and_a_failing_one_holds_up_nobody(
    start_server: Any, folders: dict[str, Path]
) -> None:
    models = [
        {"name": "slow-load-p", "path": folders["a"], "estimated_memory_gb": 1, "preload": True},
        {"name": "broken-warmup", "path": folders["b"], "estimated_memory_gb": 1, "preload": True},
        {"name": "last", "path": folders["c"], "estimated_memory_gb": 1, "preload": True, "pinned": True},
    ]
    with ExitStack() as stack:
        server = start_server(models=models, budget_gb=3.5, stack=stack, INFERD_TEST_LOAD_SECONDS="0.8")
        client = Client(server.address)
        error = await client.ask("last").error()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert reason_of(error) == "SERVER_STARTING"
        states = await client.states()
        assert states["slow-load-p"] != "LOADED"
        async with asyncio.timeout(20):
            while True:
                answer = client.ask("slow-load-p", 2)
                await asyncio.wait([answer._task])
                if answer._task.exception() is None:
                    break
                assert reason_of(await answer.error()) == "SERVER_STARTING"
                await asyncio.sleep(0.05)
        states = await client.states()
        assert states == {"slow-load-p": "LOADED", "broken-warmup": "FAILED", "last": "LOADED"}
        await client.close()


def test_a_set_of_preloads_that_does_not_fit_refuses_the_start(folders: dict[str, Path], tmp_path: Path) -> None:
    models = [
        {"name": name, "path": folders[name], "estimated_memory_gb": 1, **more}
        for name, more in (("a", {"preload": True}), ("b", {"pinned": True}))
    ]
    config = write_config(tmp_path, models, budget_gb=1.5)
    done = subprocess.run(
        [sys.executable, "-m", "inferd_server", "serve", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "memory_budget_gb" in done.stderr


def test_a_model_larger_than_the_budget_refuses_the_start(folders: dict[str, Path], tmp_path: Path) -> None:
    models = [{"name": "a", "path": folders["a"], "estimated_memory_gb": 2}]
    config = write_config(tmp_path, models, budget_gb=1.5)
    done = subprocess.run(
        [sys.executable, "-m", "inferd_server", "check", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "models[0]" in done.stderr
