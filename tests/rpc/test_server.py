"""Where the server listens, and how it stops."""

import asyncio
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fakes.embeddings import FakeEmbeddings
from fakes.generations import FakeGenerations, finished, flood, hang, started
from fakes.registry import FakeRegistry
from fakes.rerankings import FakeRerankings
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import inference_service_pb2_grpc, model_service_pb2
from inferd_server.core.errors import reader_stalled
from inferd_server.core.generation import Event, GenerationRequest
from inferd_server.rpc import listening
from inferd_server.rpc.interceptors.around import Around, _write
from inferd_server.rpc.interceptors.call import Call, current_call
from inferd_server.rpc.listening import split_host_port
from inferd_server.rpc.server import ListenSettings, Server, Services, server_options
from inferd_server.serving.lifecycle import Lifecycle
from support.rpc_world import MAX_MESSAGE, World, open_world, server_info
from support.streams import eventually
from support.wire import facts_of, reason_of

REQUEST = pb.StreamGenerateRequest(model="tiny", prompt="x")


def server_at(address: str) -> Server:
    services = Services(
        FakeGenerations(), FakeEmbeddings(), FakeRerankings(), FakeRegistry(), Lifecycle(), server_info()
    )
    return Server(services, ListenSettings(address, MAX_MESSAGE))


async def start_fails(address: str, match: str) -> int | None:
    server = server_at(address)
    with pytest.raises((OSError, ValueError), match=match) as caught:
        await server.start()
    await server.stop(0)
    return getattr(caught.value, "errno", None)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", "0.0.0.0:0", "[::]:0"])
async def test_port_zero_becomes_a_real_port(address: str) -> None:
    async with open_world(address=address) as world:
        host, port = split_host_port(world.address)
        assert host == split_host_port(address)[0]
        assert port > 0
        await world.health.Check(health_pb2.HealthCheckRequest())


async def test_a_taken_port_is_an_error_that_names_it(world: World) -> None:
    assert await start_fails(world.address, world.address) == errno.EADDRINUSE
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert await start_fails(address, address) == errno.EADDRINUSE


async def test_a_port_that_was_just_closed_can_be_had_again(world: World) -> None:
    await world.health.Check(health_pb2.HealthCheckRequest())
    await world.server.stop(0)
    async with open_world(address=world.address) as again:
        assert again.address == world.address
        await again.health.Check(health_pb2.HealthCheckRequest())


async def test_an_address_of_another_machine_is_an_error_that_names_it() -> None:
    assert await start_fails("192.0.2.1:50051", "192.0.2.1:50051") == errno.EADDRNOTAVAIL


@pytest.mark.parametrize(
    "address", ["", "50051", ":50051", "localhost", "::1:50051", "h:-1", "h:65536", "[::1]", "[h:1"]
)
async def test_what_is_no_address_is_refused(address: str) -> None:
    await start_fails(address, "neither HOST:PORT nor unix:/path")


async def test_a_unix_socket_is_its_owners_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "inferd.sock"
    async with open_world(address=f"unix:{path}") as world:
        assert world.address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await world.health.Check(health_pb2.HealthCheckRequest())
        assert await start_fails(world.address, str(path)) == errno.EADDRINUSE
        await world.health.Check(health_pb2.HealthCheckRequest())
    assert not path.exists()
    current = os.umask(0)
    os.umask(current)
    assert current != 0o177


async def test_a_unix_socket_is_its_owners_alone_before_its_mode_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever connects in that moment would stay connected."""
    monkeypatch.setattr(os, "chmod", lambda path, mode: None)
    path = tmp_path / "inferd.sock"
    async with open_world(address=f"unix:{path}", socket_mode=0o666):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_socket_that_a_dead_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "inferd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with open_world(address=f"unix:{path}") as world:
        await world.health.Check(health_pb2.HealthCheckRequest())


async def test_of_servers_that_start_together_at_a_stale_socket_one_gets_it(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    servers = [server_at(f"unix:{tmp_path}/s") for _ in range(4)]
    outcomes = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
    assert sum(isinstance(outcome, OSError) for outcome in outcomes) == 3
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] == [f"unix:{tmp_path}/s"]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    await asyncio.gather(*(server.stop(0) for server in servers))
    assert not (tmp_path / "s").exists()


async def test_a_folder_that_stays_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LOCK_ATTEMPTS", 2)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert await start_fails(f"unix:{tmp_path}/s", "keeps its folder locked") == errno.EADDRINUSE
    finally:
        os.close(folder)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    assert await start_fails(f"unix:{path}", str(path)) == errno.EEXIST
    assert path.read_text() == "data"
    assert await start_fails(f"unix:{tmp_path}/missing/x.sock", "its folder: No such file") == errno.ENOENT
    assert await start_fails(f"unix:{tmp_path}/{'x' * 120}", "107 bytes") == errno.ENAMETOOLONG


async def test_a_message_over_the_limit_is_refused_and_one_below_is_not(world: World) -> None:
    big = pb.TokenizeRequest(model="tiny", prompt="x" * (MAX_MESSAGE - 1000))
    await world.inference.Tokenize(big)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Tokenize(pb.TokenizeRequest(model="tiny", prompt="x" * (MAX_MESSAGE + 1)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_ping_option_is_the_one_that_works() -> None:
    options = dict(server_options(1))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 5000
    assert options["grpc.so_reuseport"] == 0


async def test_a_method_that_does_not_exist_is_unimplemented(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.channel.unary_unary("/inferd.v1.InferenceService/Nope")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- stopping -----------------------------------------------------------------------------------------------------


async def test_open_watches_do_not_hold_the_stop(world: World) -> None:
    health = world.health.Watch(health_pb2.HealthCheckRequest())
    models = world.models.WatchModels(model_service_pb2.WatchModelsRequest())
    reflection = world.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")()
    await reflection.write(b"\x3a\x00")  # list_services
    for call in (health, models, reflection):
        await call.read()
    began = time.monotonic()
    assert await world.server.stop(30) == 0
    assert time.monotonic() - began < 5


async def test_a_running_stream_may_end_within_the_grace(world: World) -> None:
    async def script(request: GenerationRequest) -> AsyncIterator[Event]:
        yield started(request)
        await asyncio.sleep(0.2)
        yield finished()

    world.generations.script = script
    call = world.inference.StreamGenerate(REQUEST)
    await call.read()
    assert await world.server.stop(10) == 0
    assert (await call.read()).WhichOneof("event") == "finished"


async def test_a_stream_is_cut_after_the_grace_and_its_end_is_awaited(world: World) -> None:
    world.generations.script = hang
    world.generations.cleanup_seconds = 0.3
    call = world.inference.StreamGenerate(REQUEST)
    await call.read()
    assert await world.server.stop(0.1) == 0
    assert world.generations.ends == 1


async def test_stopping_twice_and_without_a_start_does_no_harm(world: World) -> None:
    await world.server.stop(0)
    await world.server.stop(0)
    await server_at("127.0.0.1:0").stop(0)


# --- readers that do not read -------------------------------------------------------------------------------------


async def read_to_the_end(call: grpc.aio.UnaryStreamCall, received: list[pb.StreamGenerateResponse]) -> None:
    while (message := await call.read()) is not grpc.aio.EOF:
        received.append(message)


async def test_a_reader_that_takes_nothing_loses_its_stream_and_others_go_on(world: World) -> None:
    world.generations.script = flood
    call = world.inference.StreamGenerate(REQUEST)
    first = await call.read()
    around = world.server._around

    def is_stuck() -> bool:
        return any(c.writing_since is not None and time.monotonic() - c.writing_since > 0.3 for c in around._calls)

    await eventually(is_stuck)
    around.end_stalled(0.3, reader_stalled(0.3))
    await eventually(lambda: world.generations.ends == 1)
    assert (await world.inference.Tokenize(pb.TokenizeRequest(model="tiny", prompt="x"))).count == 3

    received = [first]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_the_end(call, received)
    assert reason_of(caught.value) == "SLOW_CONSUMER"
    facts = facts_of(caught.value)
    assert {key: facts[key] for key in ("request_id", "limit_ms")} == {"request_id": "made-up", "limit_ms": "300"}
    last = received[int(facts["last_sequence"])]
    assert last.delta.completion_tokens == int(facts["completion_tokens"])
    assert len(received) - 1 - last.sequence in (0, 1)  # the write that stalled may have come through after all


async def test_a_killed_channel_ends_a_stream_that_is_being_written(world: World) -> None:
    world.generations.script = flood
    async with grpc.aio.insecure_channel(world.address) as channel:
        call = inference_service_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(REQUEST)
        await call.read()
    await eventually(lambda: world.generations.ends == 1)


async def test_channels_closed_in_the_middle_of_writes_leave_no_stream_open(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # A write fails a moment before grpc cancels the task: the cancellation must not hit the stream's cleanup.
    world.generations.script = flood
    world.generations.cleanup_seconds = 0.01

    async def one() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(world.address, options=options) as channel:
            call = inference_service_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(REQUEST)
            for _ in range(3):
                await call.read()
            await asyncio.sleep(0.1)  # the writer fills the window and is parked in a write

    for _ in range(5):
        await asyncio.gather(*(one() for _ in range(10)))
    await eventually(lambda: world.generations.ends == 50)
    assert world.generations.clean_ends == 50
    assert [record for record in caplog.records if record.name == "inferd.rpc"] == []


async def test_a_failing_write_waits_for_its_cancellation_before_anything_is_cleaned_up() -> None:
    class Left:
        async def write(self, message: object) -> None:
            raise grpc.aio.InternalError("the client has left")

    task = asyncio.ensure_future(_write(Left(), "message"))
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_end_during_the_first_write_waits_for_it_and_one_before_or_after_does_not() -> None:
    """grpc would send the metadata twice and leave the RPC open."""
    writing, written = asyncio.Event(), asyncio.Event()
    calls: list[Call] = []

    class Slow:
        async def write(self, message: object) -> None:
            writing.set()
            await written.wait()

    async def two_messages(request: object, context: object) -> AsyncIterator[str]:
        calls.append(current_call())
        yield "first"
        yield "second"

    respond = Around([])._stream("/a.Service/Method", two_messages)
    task = asyncio.ensure_future(respond(None, Slow()))  # type: ignore[arg-type]
    await writing.wait()
    calls[0].end(reader_stalled(1))
    await asyncio.sleep(0.05)
    assert not task.done()
    written.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls[0].ending is not None
