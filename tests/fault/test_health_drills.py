"""Health is true to fact: a stuck loop answers no probe, a stuck only model turns readiness; each for as long."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fakes.faulty_server import STEP_BREAKS_ENGINE, STEP_HANGS
from inferd.v1 import model_service_pb2 as mod
from support.calls import NOT_SERVING, SERVING, Peer, read, read_until, streamed, unary
from support.contention import serving_with_faults
from support.servers import ServerProcess, write_config
from support.wire import reason_of

ALIVE = ("", "liveness", "inferd.v1.ModelService")
READY = ("readiness", "inferd.v1.InferenceService")
MODEL = "inferd.v1.Model/only"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServerProcess]:
    """Serves one model; what hangs hangs while its `stuck` exists."""
    folder = tmp_path_factory.mktemp("stuck")
    models = [{"name": "only", "path": tiny_model, "preload": True}]
    config = write_config(folder, models, budget_gb=1, manager={"step_timeout_s": 2})
    with serving_with_faults(config, INFERD_TEST_STUCK=str(folder / "stuck")) as process:
        process.wait_until_ready()
        process.stuck = folder / "stuck"  # type: ignore[attr-defined]
        yield process


@pytest.fixture
def stuck(server: ServerProcess) -> Iterator[Path]:
    path: Path = server.stuck  # type: ignore[attr-defined]
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as peer:
        yield peer


async def statuses(peer: Peer) -> tuple[set[int], set[int], int]:
    """Of what is alive, of what is ready, of the model."""
    alive = {await peer.check(name) for name in ALIVE}
    return alive, {await peer.check(name) for name in READY}, await peer.check(MODEL)


async def wait_until_served(peer: Peer) -> None:
    """Ask until the model answers; until then each error is typed."""
    async with asyncio.timeout(30):
        while True:
            try:
                await peer.inference.Generate(unary("only", prompt="x", max_tokens=1))
                return
            except grpc.aio.AioRpcError as error:
                if reason_of(error) != "ENGINE_FAILED":
                    raise
            await asyncio.sleep(0.05)


async def probe_until_it_fails(peer: Peer) -> None:
    for _ in range(100):
        await peer.health.Check(health_pb2.HealthCheckRequest(), timeout=1)


async def test_a_stuck_loop_fails_probes_is_told_of_and_loses_nothing(
    server: ServerProcess, peer: Peer, stuck: Path
) -> None:
    request = streamed("only", prompt="x", max_tokens=1500, ignore_eos=True, return_ids=True)
    running = peer.inference.StreamGenerate(request)
    answer = await read_until(running, "delta")
    server.signal(signal.SIGUSR1)
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await probe_until_it_fails(peer)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.to_thread(server.wait_for_log, "the event loop is stuck")
        assert "block_the_loop" in "".join(server.log)
    finally:
        await asyncio.to_thread(stuck.unlink)
    await asyncio.to_thread(server.wait_for_log, "the event loop runs again")
    assert await statuses(peer) == ({SERVING}, {SERVING}, SERVING)
    await read(running, answer)
    assert answer.end.usage.completion_tokens == len(answer.token_ids) == 1500


async def test_readiness_is_off_while_the_only_model_is_stuck_and_no_longer(peer: Peer, stuck: Path) -> None:
    await wait_until_served(peer)
    watch = peer.health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
    assert (await watch.read()).status == SERVING
    call = peer.inference.StreamGenerate(streamed("only", prompt="x", max_tokens=50, ignore_eos=True, seed=STEP_HANGS))
    assert reason_of((await read(call)).failure) == "ENGINE_FAILED"
    assert (await watch.read()).status == NOT_SERVING
    assert await statuses(peer) == ({SERVING}, {NOT_SERVING}, NOT_SERVING)
    await asyncio.to_thread(stuck.unlink)
    # Nobody has asked for it again: it can be, and whoever goes by readiness would not without this.
    assert (await asyncio.wait_for(watch.read(), 20)).status == SERVING
    assert (await peer.model("only")).state == mod.MODEL_STATE_FAILED
    assert await peer.check(MODEL) == NOT_SERVING
    await wait_until_served(peer)
    assert await statuses(peer) == ({SERVING}, {SERVING}, SERVING)
    watch.cancel()


async def test_an_engine_that_dies_turns_its_model_and_readiness_only_until_its_memory_is_back(peer: Peer) -> None:
    await wait_until_served(peer)
    request = streamed("only", prompt="x", max_tokens=50, ignore_eos=True, seed=STEP_BREAKS_ENGINE)
    assert reason_of((await read(peer.inference.StreamGenerate(request))).failure) == "ENGINE_FAILED"
    assert await peer.check(MODEL) == NOT_SERVING
    await peer.wait_until_ready(20)
    await wait_until_served(peer)
    assert await peer.check(MODEL) == SERVING
