"""deploy/nginx/inferd.conf in a real nginx: streams pass as they are made, a client's end reaches the server."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fakes.generations import fail, finished, started
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import inference_service_pb2_grpc
from inferd_client import AsyncClient, InvalidParameter, Unavailable
from inferd_server.core.errors import FieldViolation, invalid_parameter
from inferd_server.core.generation import Delta
from support.certificates import Authority
from support.rpc_world import World, open_channel, open_world

CONFIG = Path(__file__).parents[2] / "deploy/nginx/inferd.conf"
MAIN = """
daemon off;
{user}
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    include {folder}/inferd.conf;
}}
"""
REQUEST = pb.StreamGenerateRequest(model="tiny", prompt="x")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def write_config(folder: Path, port: int, upstream: str, authority: Authority) -> Path:
    """The file of deploy/, with this machine's places in it, and what stands around it."""
    pair = authority.server_files(folder)
    text = CONFIG.read_text()
    for stated, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/nginx/tls/inferd.pem", pair.certificate),
        ("/etc/nginx/tls/inferd.key", pair.key),
        ("server 127.0.0.1:50051;", f"server {upstream};"),
    ):
        assert text.count(stated) == 1, stated
        text = text.replace(stated, here)
    (folder / "inferd.conf").write_text(text)
    main = folder / "nginx.conf"
    main.write_text(MAIN.format(folder=folder, user="user root;" if os.geteuid() == 0 else ""))
    return main


@asynccontextmanager
async def proxied(folder: Path, port: int, upstream: str, authority: Authority) -> AsyncIterator[str]:
    """nginx before an address; yields its own."""
    main = write_config(folder, port, upstream, authority)
    command = ["nginx", "-p", str(folder), "-c", str(main)]
    nginx = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: ASYNC220  # it is only started here
    try:
        async with open_channel(f"localhost:{port}", authority.channel_credentials()) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
        yield f"localhost:{port}"
    finally:
        nginx.terminate()
        await asyncio.to_thread(nginx.wait, 30)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as opened:
        yield opened


@pytest.fixture
async def channel(
    world: World, tmp_path: Path, unused_tcp_port: int, authority: Authority
) -> AsyncIterator[grpc.aio.Channel]:
    """To the world, through nginx."""
    async with (
        proxied(tmp_path, unused_tcp_port, world.address, authority) as address,
        open_channel(address, authority.channel_credentials()) as channel,
    ):
        yield channel


async def test_each_token_passes_before_the_next_is_made(world: World, channel: grpc.aio.Channel) -> None:
    seen = asyncio.Semaphore(0)

    async def script(request: Any) -> Any:
        yield started(request)
        for count in range(20):
            await seen.acquire()  # the client has what came before
            yield Delta(text="x", completion_tokens=count + 1)
        await seen.acquire()
        yield finished()

    world.generations.script = script
    stream = inference_service_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(REQUEST, timeout=60)
    count = 0
    async for _ in stream:
        count += 1
        seen.release()
    assert count == 22


@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_a_client_that_leaves_ends_its_request(world: World, channel: grpc.aio.Channel, way: str) -> None:
    ended = asyncio.Event()

    async def script(request: Any) -> Any:
        try:
            yield started(request)
            await asyncio.Event().wait()
        finally:
            ended.set()

    world.generations.script = script
    stream = inference_service_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(REQUEST)
    await stream.read()
    if way == "cancel":
        stream.cancel()
    else:
        await channel.close()
    await asyncio.wait_for(ended.wait(), 30)


async def test_errors_pass_with_their_details(
    world: World, tmp_path: Path, unused_tcp_port: int, authority: Authority
) -> None:
    world.generations.script = fail(invalid_parameter([FieldViolation("prompt", "is odd")]), after=1)
    async with (
        proxied(tmp_path, unused_tcp_port, world.address, authority) as address,
        AsyncClient(address, credentials=authority.channel_credentials()) as client,
    ):
        with pytest.raises(InvalidParameter) as caught:
            async with client.stream("tiny", "x") as answer:
                assert [event async for event in answer]
    assert caught.value.violations == (("prompt", "is odd"),)


async def test_health_and_large_messages_pass(world: World, channel: grpc.aio.Channel) -> None:
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
    await stub.Generate(pb.GenerateRequest(model="tiny", prompt="x" * (8 << 20)))


async def test_without_a_server_the_client_is_told_to_come_again(
    tmp_path: Path, unused_tcp_port_factory: Any, authority: Authority
) -> None:
    port, dead = unused_tcp_port_factory(), unused_tcp_port_factory()
    async with (
        proxied(tmp_path, port, f"127.0.0.1:{dead}", authority) as address,
        AsyncClient(address, credentials=authority.channel_credentials()) as client,
    ):
        with pytest.raises(Unavailable, match="no inferd server answers"):
            await client.models()
