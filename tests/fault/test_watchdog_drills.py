"""The watchdog over a socket: what is slow and what is stuck, and how a model that failed comes back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from fakes.faulty_server import FIRST_STEP_RAISES, PREFILL_HANGS, STEP_BREAKS_ENGINE, STEP_HANGS
from support import tiny_llama
from support.calls import NOT_SERVING, SERVING, Peer
from support.contention import GIB, Client, connected, serving_with_faults
from support.servers import ServerProcess, write_config
from support.wire import reason_of

STEP_TIMEOUT = 3.0
"""Longer than any step that is no fault takes, on cores that many share (seen: 1.5 s)."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Room for both of its models; a step may take STEP_TIMEOUT beyond its prefill."""
    folder = tmp_path_factory.mktemp("watchdog")
    models = [
        {"name": name, "path": tiny_llama.build(folder / name, seed=seed), "estimated_memory_gb": 1}
        for name, seed in (("good", 1), ("bad", 2))
    ]
    config = write_config(folder, models, budget_gb=2.5, manager={"step_timeout_s": STEP_TIMEOUT})
    with serving_with_faults(config, INFERD_TEST_STUCK=str(folder / "stuck")) as process:
        process.stuck = folder / "stuck"  # type: ignore[attr-defined]
        yield process


class Stuck:
    """From `begin` to `end`, what hangs hangs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> None:
        self._path.touch()

    def end(self) -> None:
        self._path.unlink(missing_ok=True)


@pytest.fixture
def stuck(server: ServerProcess) -> Iterator[Stuck]:
    stuck = Stuck(server.stuck)  # type: ignore[attr-defined]
    yield stuck
    stuck.end()


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client


async def answered_again(client: Client, model: str) -> list[int]:
    """Ask, without a LoadModel, until the model answers; until then each error is typed. Returns the tokens."""
    async with asyncio.timeout(30):
        while True:
            try:
                return (await client.answer(model)).ids
            except grpc.aio.AioRpcError as error:
                if reason_of(error) != "ENGINE_FAILED":
                    raise
            await asyncio.sleep(0.05)


async def test_a_long_prefill_is_allowed_what_its_tokens_may_take_and_no_more(client: Client, stuck: Stuck) -> None:
    prompt = "once upon a time " * 6  # of 102 tokens: 20 s, as nothing has been measured
    await client.load("bad")
    stuck.begin()
    slow = client.ask("bad", prompt=prompt, seed=PREFILL_HANGS)
    await asyncio.sleep(1.5 * STEP_TIMEOUT)
    assert not slow.is_over
    assert (await client.model("bad")).running_requests == 1
    stuck.end()
    assert len((await slow.result()).ids) == 8

    await asyncio.gather(*(client.answer("bad", 1, prompt=f"{i} {prompt * 8}") for i in range(30)))  # quick ones
    stuck.begin()
    began = time.monotonic()
    error = await client.ask("bad", prompt=prompt[::-1], seed=PREFILL_HANGS).error()
    assert reason_of(error) == "ENGINE_FAILED"
    assert STEP_TIMEOUT <= time.monotonic() - began < STEP_TIMEOUT + 15
    assert (await client.model("bad")).last_error.reason == "ENGINE_FAILED"


async def test_a_model_whose_step_hung_is_loaded_again_by_a_request_once_the_step_returned(
    client: Client, server: ServerProcess, stuck: Stuck
) -> None:
    await client.answer("good")
    await client.answer("bad")
    generation = (await client.model("bad")).load_generation
    stuck.begin()
    neighbour = client.ask("bad", 3000)
    await neighbour.tokens(1)
    for ended in (await client.ask("bad", 50, seed=STEP_HANGS).error(), await neighbour.error()):
        assert reason_of(ended) == "ENGINE_FAILED"
    model = await client.until_state("bad", "FAILED")
    assert model.memory.charged_bytes == GIB, "its step holds what it has"
    async with Peer(server.address) as peer:
        assert await peer.check("inferd.v1.Model/bad") == NOT_SERVING
        for name in ("", "liveness", "readiness", "inferd.v1.Model/good"):
            assert await peer.check(name) == SERVING
    assert len((await client.answer("good")).ids) == 8
    stuck.end()
    assert len(await answered_again(client, "bad")) == 8
    assert (await client.model("bad")).load_generation == generation + 1


async def test_a_model_whose_every_step_fails_is_given_up_after_three(client: Client) -> None:
    await client.answer("bad")
    for _ in range(3):
        assert reason_of(await client.ask("bad", seed=FIRST_STEP_RAISES).error()) == "ENGINE_FAILED"
    await client.until_state("bad", "FAILED")
    await answered_again(client, "bad")


async def test_a_request_that_kills_its_model_and_is_sent_again_and_again_makes_no_storm_of_loads(
    client: Client,
) -> None:
    await client.load("bad")
    before = (await client.model("bad")).load_generation
    deadline, asked = time.monotonic() + 4, 0
    while time.monotonic() < deadline:
        error = await client.ask("bad", 50, seed=STEP_BREAKS_ENGINE).error()
        assert reason_of(error) == "ENGINE_FAILED"
        asked += 1
        await asyncio.sleep(0.01)
    loads = (await client.model("bad")).load_generation - before
    assert asked > 10 * loads
    assert loads <= 3, "each time it is left alone for twice as long"
    assert len((await client.answer("good")).ids) == 8
