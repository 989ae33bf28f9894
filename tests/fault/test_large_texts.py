"""Texts far larger than anybody means: prompts of 10 MB beside running streams, and error texts of 100 KiB."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferd.v1 import inference_service_pb2, model_service_pb2
from support import tiny_llama
from support.calls import chat, unary
from support.contention import Client, serving_with_faults
from support.servers import ServerProcess, write_config
from support.wholeness import Witness
from support.wire import reason_of, trailers_nbytes

pytestmark = [pytest.mark.faults, pytest.mark.long]

LOUD = "ü\n" * 2**15
TRAILERS_NBYTES = 6 * 1024
TEN_MB = 10_000_000
TEMPLATE = "{{ raise_exception('scripted: ' ~ '" + "ü" * 100_000 + "') }}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[ServerProcess]:
    """The good models, one whose load and one whose template fail with much text; all fit."""
    root = tmp_path_factory.mktemp("texts")
    entries = {
        **folders,
        "loud-load": folders["one"],
        "loud-chat": tiny_llama.build(root / "loud", chat_template=TEMPLATE),
    }
    models = [{"name": name, "path": path, "estimated_memory_gb": 1} for name, path in entries.items()]
    config = write_config(root, models, budget_gb=5.5, metrics={"listen": "127.0.0.1:0"})
    with serving_with_faults(config, INFERD_TEST_STEP_SECONDS="0.002") as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def client(server: ServerProcess, witness: Witness) -> AsyncIterator[Client]:
    """A client with a stream that runs through all of it."""
    witness.allowed = "loud|^ *Traceback"
    witness.more_mib += 200  # a prompt of 10 MB is text, bytes and pieces for a while; malloc keeps some
    client = Client(server.address)
    bystander = await client.ask("two", 90_000).tokens(2)
    yield client
    await bystander.tokens(len(bystander.output.ids) + 5)
    await bystander.leave()
    await client.unload("loud-load", "FORCE")
    await client.close()


PROMPTS: dict[str, dict[str, Any]] = {
    "words": {"prompt": "lorem " * (TEN_MB // 6)},
    "one word": {"prompt": "x" * TEN_MB},
    "umlauts": {"prompt": "ä" * (TEN_MB // 2)},
    "a chat": {"chat": [("user", "lorem " * (TEN_MB // 6))]},
    "many turns": {"chat": [("user", "x" * 2500)] * 4000},
    "token ids": {"ids": [9] * (TEN_MB // 2)},
}


@pytest.mark.parametrize("name", PROMPTS)
async def test_ten_megabytes_of_prompt_are_refused_beside_running_streams(
    server: ServerProcess, client: Client, name: str
) -> None:
    streams = [await client.ask("one", 90_000).tokens(1) for _ in range(4)]
    health: Any = health_pb2_grpc.HealthStub(client.channel)
    refused = asyncio.ensure_future(client.inference.Generate(unary("one", **PROMPTS[name]), timeout=100))
    slowest = 0.0
    while not refused.done():
        began = time.monotonic()
        await health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5)
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.01)
    error = refused.exception()
    assert isinstance(error, grpc.aio.AioRpcError)
    assert reason_of(error) == "PROMPT_TOO_LONG"
    print(f"{name}: slowest probe {1000 * slowest:.0f} ms")
    for stream in streams:
        await stream.tokens(len(stream.output.ids) + 2)
        await stream.leave()


def _get_model(client: Client) -> Awaitable[Any]:
    return client.models.GetModel(model_service_pb2.GetModelRequest(name=LOUD))  # type: ignore[no-any-return]


REFUSALS: dict[str, tuple[str, Callable[[Client], Awaitable[Any]]]] = {
    "an unknown model": ("MODEL_NOT_FOUND", lambda c: c.answer(LOUD)),
    "a model to look at": ("MODEL_NOT_FOUND", _get_model),
    "a model to load": ("MODEL_NOT_FOUND", lambda c: c.load(LOUD)),
    "a request id": ("INVALID_PARAMETER", lambda c: c.answer("one", request_id=LOUD)),
    "a stop sequence": ("INVALID_PARAMETER", lambda c: c.answer("one", stop=[LOUD] * 20)),
    "a constraint": ("INVALID_PARAMETER", lambda c: c.answer("one", regex="(" + LOUD)),
    "an id to cancel": ("INVALID_PARAMETER", lambda c: c.cancel(LOUD)),
    "a load": ("MODEL_LOAD_FAILED", lambda c: c.load("loud-load")),
    "a load within the backoff": ("MODEL_LOAD_FAILED", lambda c: c.answer("loud-load")),
    "a chat template": (
        "INVALID_PARAMETER",
        lambda c: c.inference.Generate(
            inference_service_pb2.GenerateRequest(model="loud-chat", chat=chat(("user", "x")))
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_an_error_of_much_text_arrives_with_its_code(client: Client, name: str) -> None:
    reason, call = REFUSALS[name]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(client)
    assert reason_of(caught.value) == reason
    assert trailers_nbytes(caught.value) < TRAILERS_NBYTES
    listed = await client.list()
    assert max(len(model.last_error.message) for model in listed.models) < 10_000
