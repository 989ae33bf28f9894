"""The event loop is never busy for long: probes during a load, a long prefill and full decode. Figures are printed."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import Any

import grpc
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support import tiny_llama
from support.calls import Peer, read, read_until, streamed
from support.servers import ServerProcess, serving, write_config
from support.wire import fields_of

BOUND_SECONDS = 1.0
"""Generous: the probes share two cores with the engine, and with whatever else runs here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`wide` is large enough (150 MB) for loads and prefills to take a while."""
    folder = tmp_path_factory.mktemp("responsiveness")
    wide = tiny_llama.build(folder / "wide", layers=10, hidden=768, context_length=100_000)
    with serving(write_config(folder, [{"name": "wide", "path": wide}], budget_gb=4)) as started:
        started.wait_until_ready()
        yield started


async def probe(address: str, work: Awaitable[Any], what: str) -> float:
    """Ask for liveness again and again while `work` runs; prints the delays and returns their 99th percentile."""
    delays = []
    running = asyncio.ensure_future(work)
    async with Peer(address) as prober:
        await prober.check("liveness")
        while not running.done():
            began = time.perf_counter()
            await prober.check("liveness")
            delays.append(time.perf_counter() - began)
            await asyncio.sleep(0.002)
    await running
    delays.sort()
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    print(f"{what}: {len(delays)} probes, p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f}, worst {delays[-1] * 1e3:.1f} ms")
    return p99


async def test_probes_are_answered_during_loads_prefills_and_full_decode(server: ServerProcess) -> None:
    async with Peer(server.address) as peer:

        async def reload() -> None:
            for _ in range(3):
                await peer.models.LoadModel(mod.LoadModelRequest(name="wide"), timeout=60)
                await peer.models.UnloadModel(mod.UnloadModelRequest(name="wide"), timeout=60)

        assert await probe(server.address, reload(), "loading and unloading") < BOUND_SECONDS
        await peer.models.LoadModel(mod.LoadModelRequest(name="wide"), timeout=60)

        async def prefill() -> None:
            call = peer.inference.StreamGenerate(streamed("wide", ids=[9] * 3000, max_tokens=1))
            await read_until(call, "started")
            await asyncio.wait({asyncio.ensure_future(read_until(call, "delta"))}, timeout=4)
            call.cancel()

        assert await probe(server.address, prefill(), "prefilling") < BOUND_SECONDS

        async def decode() -> None:
            request = streamed("wide", prompt="x", ignore_eos=True, max_tokens=40, coalesce_ms=0)
            await asyncio.gather(*(read(peer.inference.StreamGenerate(request)) for _ in range(32)))

        assert await probe(server.address, decode(), "decoding 32 streams") < BOUND_SECONDS

        async def tokenize() -> None:
            request = streamed("wide", prompt="lorem ipsum " * 8000, max_tokens=1)
            call = peer.inference.StreamGenerate(request)
            await read_until(call, "started")
            call.cancel()

        assert await probe(server.address, tokenize(), "tokenizing 96,000 characters") < BOUND_SECONDS
        await peer.wait_until_idle("wide")


def full_of_json() -> bytes:
    """A chat with 57 MiB of JSON, in texts that are short enough each."""
    hi = gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(text="hi")])
    text = '{"a":[' + "[]," * 80_000 + "[1]]}"
    tools = [gen.Tool(name=f"f{i}", parameters_json=text) for i in range(250)]
    return inf.GenerateRequest(model="wide", chat=gen.ChatInput(messages=[hi], tools=tools)).SerializeToString()


async def test_probes_are_answered_while_a_chat_full_of_json_is_refused(server: ServerProcess) -> None:
    serialized = full_of_json()  # once: the client shares our loop
    async with Peer(server.address) as peer:
        generate = peer.channel.unary_unary("/inferd.v1.InferenceService/Generate")

        async def refused() -> None:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await generate(serialized, timeout=30)
                assert fields_of(caught.value) == ["chat"]

        # grpc reads the message on the loop: 40 ms on a core of its own, but it and its client copy 57 MiB many times.
        assert await probe(server.address, refused(), "refusing 57 MiB of JSON") < 5 * BOUND_SECONDS
