"""Broken models and broken engines: each failure is typed, other models go on serving, and the ledger is exact."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fakes.faulty_server import ROW_FAILS, STEP_BREAKS_ENGINE, STEP_HANGS, STEP_RAISES
from support import tiny_llama
from support.contention import GIB, Client, check_ledger, connected, policy, serving_with_faults, state_of
from support.servers import ServerProcess, write_config
from support.wire import facts_of, reason_of

pytestmark = pytest.mark.faults

STEP_TIMEOUT = 3.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders: two good ones, and one for each way to be broken."""
    root = tmp_path_factory.mktemp("drills")
    good = {name: tiny_llama.build(root / name, seed=seed) for name, seed in (("good", 1), ("better", 2))}
    broken = {
        name: tiny_llama.build(root / name, seed=3, shards=3 if name == "missing-shard" else 1)
        for name in ("truncated", "rubbish", "missing-shard", "unknown", "no-config", "no-tokenizer", "wrong-shape")
    }
    return {**good, **broken}


def break_them(folders: dict[str, Path]) -> None:
    """After the server has read what a configuration needs: files break while it runs."""
    truncated = folders["truncated"] / "model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-5000])
    (folders["rubbish"] / "model.safetensors").write_bytes(b"rubbish" * 1000)
    next(iter(sorted(folders["missing-shard"].glob("model-00002*")))).unlink()
    edit_config(folders["unknown"], model_type="nobodys", architectures=["NobodysForCausalLM"])
    (folders["no-config"] / "config.json").unlink()
    edit_config(folders["wrong-shape"], hidden_size=128)
    shutil.rmtree(folders["no-tokenizer"])


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[ServerProcess]:
    """Room for two models of 1 GiB; nothing waits longer than it has to."""
    stuck = tmp_path_factory.mktemp("stuck") / "stuck"
    entries = {**folders, "broken-warmup": folders["good"], "broken-close": folders["better"]}
    models = [{"name": name, "path": path, "estimated_memory_gb": 1} for name, path in entries.items()]
    config = write_config(
        stuck.parent,
        models,
        budget_gb=2.5,
        manager={"step_timeout_s": STEP_TIMEOUT, "request_overrides": ["fail", "wait", "preempt"]},
    )
    environ = {"INFERD_TEST_STEP_SECONDS": "0.004", "INFERD_TEST_STUCK": str(stuck)}
    with serving_with_faults(config, **environ) as server:
        break_them(folders)
        server.stuck = stuck
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client


BYSTANDER_TOKENS = 300
_right: list[int] = []  # what a bystander gets, computed once


@asynccontextmanager
async def a_bystander(client: Client) -> AsyncIterator[None]:
    """A stream of another model: it goes on through all of it, and its tokens are right."""
    if not _right:
        _right.extend((await client.answer("good", BYSTANDER_TOKENS)).ids)
    bystander = await client.ask("good", BYSTANDER_TOKENS).tokens(2)
    yield
    if not bystander.is_over:
        await bystander.tokens(min(BYSTANDER_TOKENS, len(bystander.output.ids) + 3))
    assert bystander.output.ids == _right[: len(bystander.output.ids)]
    if bystander.is_over:
        assert (await bystander.result()).finished.preemptions == 0
    await bystander.leave()


BROKEN = [
    ("truncated", "MODEL_CORRUPT"),
    ("rubbish", "MODEL_CORRUPT"),
    ("missing-shard", "MODEL_CORRUPT"),
    ("unknown", "MODEL_UNSUPPORTED"),
    ("no-config", "MODEL_UNSUPPORTED"),
    ("broken-warmup", "MODEL_LOAD_FAILED"),
    ("wrong-shape", None),
    ("no-tokenizer", None),
]
CODES = {
    "MODEL_CORRUPT": grpc.StatusCode.DATA_LOSS,
    "MODEL_UNSUPPORTED": grpc.StatusCode.FAILED_PRECONDITION,
    "MODEL_LOAD_FAILED": grpc.StatusCode.INTERNAL,
}


@pytest.mark.parametrize(("name", "reason"), BROKEN, ids=[name for name, _ in BROKEN])
async def test_a_broken_model_is_told_as_such_and_displaces_no_good_one(
    client: Client, name: str, reason: str | None
) -> None:
    await client.answer("better")  # idle: a broken model must not cost its place where cheap checks can tell
    async with a_bystander(client):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.load(name)
        error = caught.value
        assert error.code() is CODES[reason_of(error)]
        assert reason is None or reason_of(error) == reason
        model = await client.model(name)
        assert state_of(model) == "FAILED"
        assert model.last_error.reason == reason_of(error)
        assert model.memory.charged_bytes == 0
        if name not in {"broken-warmup", "wrong-shape"}:
            assert await client.state("better") == "LOADED"
    assert len((await client.answer("better")).ids) == 8
    assert state_of((await client.unload(name)).model) == "UNLOADED"
    assert not (await client.model(name)).HasField("last_error")


async def test_a_row_that_fails_ends_alone(client: Client) -> None:
    async with a_bystander(client):
        neighbour = await client.run("better")
        error = await client.ask("better", 50, seed=ROW_FAILS, request_id="row").error()
        assert error.code() is grpc.StatusCode.INTERNAL
        assert reason_of(error) == "ENGINE_FAILED"
        assert facts_of(error)["request_id"] == "row"
        await neighbour.tokens(len(neighbour.output.ids) + 3)
    assert await client.state("better") == "LOADED"


async def test_a_step_that_raises_ends_its_requests_and_the_model_serves_on(client: Client) -> None:
    right = (await client.answer("better")).ids
    generation = (await client.model("better")).load_generation
    async with a_bystander(client):
        neighbour = await client.run("better")
        error = await client.ask("better", 50, seed=STEP_RAISES).error()
        for ended in (error, await neighbour.error()):
            assert ended.code() is grpc.StatusCode.INTERNAL
            assert reason_of(ended) == "ENGINE_FAILED"
            assert "secret" not in str(ended.details())
            assert int(facts_of(ended)["completion_tokens"]) >= 2
        assert (await client.answer("better")).ids == right
    assert (await client.model("better")).load_generation == generation


async def test_an_engine_that_dies_fails_its_model_and_gives_its_bytes_back(client: Client) -> None:
    right = (await client.answer("better")).ids
    async with a_bystander(client):
        neighbour = await client.run("better")
        error = await client.ask("better", 50, seed=STEP_BREAKS_ENGINE).error()
        for ended in (error, await neighbour.error()):
            assert reason_of(ended) == "ENGINE_FAILED"
        model = await client.until_state("better", "FAILED")
        assert model.last_error.reason == "ENGINE_FAILED"
        again = client.ask("better")
        assert reason_of(await again.error()) == "ENGINE_FAILED"  # within the backoff: at once
        assert again.seconds < 5
        async with asyncio.timeout(30):
            while (await client.list()).memory.used_bytes != GIB:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        loaded = await client.load("better")
        assert not loaded.model.HasField("last_error")
        assert (await client.answer("better")).ids == right


async def test_an_engine_that_dies_while_it_is_preempted_loses_only_its_own(client: Client) -> None:
    await client.run("good", preemptible=False)
    for _ in range(5):
        victim = client.ask("better", 50, seed=STEP_BREAKS_ENGINE)
        await victim.tokens(1)
        preemptor = client.ask("broken-close", 5, contention=policy("preempt"))
        for answer in (victim, preemptor):
            await asyncio.wait([answer._task])
            error = answer._task.exception()
            assert error is None or reason_of(await answer.error()) in {"CAPACITY_EXHAUSTED", "ENGINE_FAILED"}
        assert victim.output.finished is None or victim.output.finished.preemptions == 1
        await client.unload("better", "FORCE")
        await client.unload("broken-close", "FORCE")


async def test_an_end_that_raises_gives_the_bytes_back_once_the_engine_is_gone(client: Client) -> None:
    async with a_bystander(client):
        await client.answer("broken-close")
        answer = await client.unload("broken-close")
        assert state_of(answer.model) == "UNLOADED"
        listed = await client.list()
        check_ledger(listed)
        assert listed.memory.used_bytes == GIB
        assert len((await client.answer("broken-close")).ids) == 8


async def test_a_step_that_hangs_fails_its_model_and_stays_charged_until_it_ends(
    client: Client, server: ServerProcess
) -> None:
    server.stuck.touch()
    try:
        async with a_bystander(client):
            await client.answer("better")
            busy = await client.run("good")  # for longer than a step may take
            hanging = client.ask("better", 50, seed=STEP_HANGS, request_id="hangs")
            error = await hanging.error()
            assert reason_of(error) == "ENGINE_FAILED"
            assert facts_of(error)["completion_tokens"] == str(len(hanging.output.ids))
            assert STEP_TIMEOUT <= hanging.seconds < STEP_TIMEOUT + 15
            model = await client.until_state("better", "FAILED")
            assert model.memory.charged_bytes == GIB
            error = await client.ask("broken-close", contention=policy("fail")).error()
            assert facts_of(error)["blocking_models"] == "better,good"
            await busy.leave()
    finally:
        server.stuck.unlink()
    async with asyncio.timeout(30):
        while (await client.model("better")).memory.charged_bytes:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    await client.load("better")


async def test_after_every_drill_the_server_is_whole(client: Client, server: ServerProcess) -> None:
    async with a_bystander(client):
        assert len((await client.answer("better")).ids) == 8
    answers: list[Any] = [client.ask(name, 3) for name in ("good", "better")]
    for answer in answers:
        assert len((await answer.result()).ids) == 3
    assert not any("a task was destroyed" in line or "never retrieved" in line for line in server.log)
