"""The files of a model break while it is loaded, and engines fail in every way that they know: each failure is typed,
the other models go on, and what was broken serves again once it is whole."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import mlx.core as mx
import pytest

from fakes.faulty_server import ROW_FAILS, STEP_BREAKS_ENGINE, STEP_HANGS, STEP_RAISES
from support import tiny_llama
from support.contention import Client, serving_with_faults, state_of
from support.servers import ServerProcess, write_config
from support.wholeness import Witness
from support.wire import reason_of

pytestmark = [pytest.mark.faults, pytest.mark.long]

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of `good`, which nothing happens to, `frail`, whose files break, and `spare`, other weights for it."""
    root = tmp_path_factory.mktemp("weights")
    for seed, name in enumerate(("good", "frail", "spare")):
        tiny_llama.build(root / name, seed=seed, context_length=100_000)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[ServerProcess]:
    """Both fit; a step may take three seconds."""
    models = [{"name": name, "path": root / name, "estimated_memory_gb": 1} for name in ("good", "frail")]
    manager = {"step_timeout_s": 3}
    config = write_config(root, models, budget_gb=2.5, manager=manager, metrics={"listen": "127.0.0.1:0"})
    environ = {"INFERD_TEST_STEP_SECONDS": "0.002", "INFERD_TEST_STUCK": str(root / "stuck")}
    with serving_with_faults(config, **environ) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def witness(server: ServerProcess) -> AsyncIterator[Witness]:
    """The server must be whole at the end of the test, after the backoff of a model that failed."""
    witness = await Witness.of(server, "good", "frail")
    witness.allowed = "frail|^ *Traceback"  # its failures are logged
    yield witness
    client = Client(server.address)
    await client.load("frail")
    await client.close()
    await witness.check()


@asynccontextmanager
async def bystander(server: ServerProcess) -> AsyncIterator[Client]:
    """A client with a stream of `good` that goes on through all of it."""
    client = Client(server.address)
    stream = await client.ask("good", 90_000).tokens(2)
    yield client
    await stream.tokens(len(stream.output.ids) + 5)
    await stream.leave()
    await client.close()


def truncate(weights: Path, root: Path) -> None:
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def empty(weights: Path, root: Path) -> None:
    weights.write_bytes(b"")


def remove(weights: Path, root: Path) -> None:
    weights.unlink()


def scramble(weights: Path, root: Path) -> None:
    weights.write_bytes(b"\xff" * weights.stat().st_size)


def lie(weights: Path, root: Path) -> None:
    """The header promises more than the file holds."""
    data = weights.read_bytes()
    weights.write_bytes((2**40).to_bytes(8, "little") + data[8:])


BREAKS = (truncate, empty, remove, scramble, lie)


@pytest.mark.parametrize("damage", BREAKS)
async def test_weights_that_break_while_they_are_loaded_serve_on_and_are_told_at_the_next_load(
    server: ServerProcess, witness: Witness, root: Path, damage: Callable[[Path, Path], None]
) -> None:
    weights, whole = root / "frail" / WEIGHTS, root / "whole"
    shutil.copy(weights, whole)
    async with bystander(server) as client:
        try:
            running = await client.ask("frail", 90_000).tokens(2)
            damage(weights, root)
            await running.tokens(len(running.output.ids) + 5)
            assert (await client.answer("frail")).ids == witness.right["frail"]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.load("frail", reload=True)
            assert (caught.value.code(), reason_of(caught.value)) in (
                (grpc.StatusCode.DATA_LOSS, "MODEL_CORRUPT"),
                (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_UNSUPPORTED"),
            )
            await running.leave()
        finally:
            shutil.copy(whole, weights)


async def test_other_weights_are_served_from_the_next_load_on(
    server: ServerProcess, witness: Witness, root: Path
) -> None:
    weights, whole = root / "frail" / WEIGHTS, root / "whole"
    shutil.copy(weights, whole)
    async with bystander(server) as client:
        try:
            shutil.copy(root / "spare" / WEIGHTS, weights)
            assert (await client.answer("frail")).ids == witness.right["frail"]
            await client.load("frail", reload=True)
            assert (await client.answer("frail")).ids != witness.right["frail"]
        finally:
            shutil.copy(whole, weights)
            await client.load("frail", reload=True)


async def test_weights_of_no_number_fail_their_requests_and_nobody_else_s(
    server: ServerProcess, witness: Witness, root: Path
) -> None:
    weights, whole = root / "frail" / WEIGHTS, root / "whole"
    shutil.copy(weights, whole)
    async with bystander(server) as client:
        try:
            arrays = dict(mx.load(str(weights)))
            spoilt = {name: mx.full(array.shape, float("nan")) for name, array in arrays.items()}
            mx.save_safetensors(str(weights), spoilt, {"format": "mlx"})
            await client.load("frail", reload=True)
            error = await client.ask("frail").error()
            assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
        finally:
            shutil.copy(whole, weights)
            await client.load("frail", reload=True)


@pytest.mark.parametrize("fault", [ROW_FAILS, STEP_RAISES, STEP_BREAKS_ENGINE, STEP_HANGS])
async def test_an_engine_that_fails_ends_its_own_requests_typed(
    server: ServerProcess, witness: Witness, root: Path, fault: int
) -> None:
    stuck = root / "stuck"
    async with bystander(server) as client:
        stuck.touch()
        try:
            neighbours = [await client.run("frail") for _ in range(3)]
            error = await client.ask("frail", 50, seed=fault).error()
            assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
            if fault == ROW_FAILS:
                for neighbour in neighbours:
                    await neighbour.tokens(len(neighbour.output.ids) + 3)
                    await neighbour.leave()
            else:
                assert {reason_of(await neighbour.error()) for neighbour in neighbours} == {"ENGINE_FAILED"}
            assert state_of(await client.model("frail")) == ("FAILED" if fault in FATAL else "LOADED")
        finally:
            stuck.unlink()
        async with asyncio.timeout(20):
            while fault in FATAL and (await client.model("frail")).memory.charged_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


FATAL = (STEP_BREAKS_ENGINE, STEP_HANGS)
