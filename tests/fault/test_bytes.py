"""Bytes that no client sends: in place of messages, of HTTP/2, and too slowly. The server answers or hangs up, and
serves on."""

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator, Sequence

import grpc
import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from inferd.v1 import inference_service_pb2, model_service_pb2
from support import frames
from support.contention import Client, request, unary
from support.servers import ServerProcess
from support.wholeness import Witness
from support.wire import end_of

pytestmark = [pytest.mark.faults, pytest.mark.long]

SLOW_SOCKETS = 200
SERVICES = (
    *inference_service_pb2.DESCRIPTOR.services_by_name.values(),
    *model_service_pb2.DESCRIPTOR.services_by_name.values(),
    *health_pb2.DESCRIPTOR.services_by_name.values(),
)
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
GENERATE = "/inferd.v1.InferenceService/Generate"


def garbage(dice: random.Random) -> Iterator[bytes]:
    """Bytes that are hardly ever a message: random ones, a message cut, a length that promises too much, no UTF-8."""
    whole = request("one", prompt="x" * 50, stop=["a", "b"]).SerializeToString()
    yield from (dice.randbytes(dice.randint(1, 200)) for _ in range(20))
    yield from (whole[:cut] for cut in range(1, len(whole), 7))
    yield b"\x0a\xff\xff\xff\xff\x7f"
    yield b"\x12\x04\xff\xfe\xfd\xfc"
    yield b"\x1a\x02" * 500
    yield b"\xff" * 1000
    yield b"\x0b" * 200  # groups within groups


def is_message(kind: type[Message], data: bytes) -> bool:
    try:
        kind.FromString(data)
    except DecodeError:
        return False
    return True


async def answer_to(client: Client, path: str, data: bytes) -> tuple[str, str]:
    """(code, reason) of a call with these bytes; a stream is left after its first answer."""
    streams = METHODS[path].server_streaming
    call = (client.channel.unary_stream if streams else client.channel.unary_unary)(path)(data, timeout=20)
    try:
        if streams:
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, end_of(error)
    return "OK", ""


@pytest.mark.parametrize("path", METHODS)
async def test_bytes_that_are_no_message_are_told_as_such(server: ServerProcess, witness: Witness, path: str) -> None:
    client = Client(server.address)
    kind = GetMessageClass(METHODS[path].input_type)
    refused = 0
    for data in garbage(random.Random(path)):
        code, reason = await answer_to(client, path, data)
        if not is_message(kind, data):
            assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_PARAMETER"), data
            refused += 1
        assert code not in {"INTERNAL", "UNKNOWN"}, data
    assert refused >= 10
    await client.close()


async def test_fields_of_a_newer_contract_change_nothing(server: ServerProcess, witness: Witness) -> None:
    client = Client(server.address)
    newer = (
        b"\x9a\x3f\x05hello" + b"\xa0\x3f\x01" + b"\xa5\x3f\x01\x02\x03\x04"
    )  # fields 1011 to 1013: bytes, varint, fixed32
    plain = unary(request("one")).SerializeToString()
    generate = client.channel.unary_unary(
        GENERATE, response_deserializer=inference_service_pb2.GenerateResponse.FromString
    )
    for data in (plain + newer, newer + plain):
        assert list((await generate(data, timeout=20)).token_ids) == witness.right["one"]
    await client.close()


def statuses(connection: socket.socket) -> Iterator[str]:
    """What each stream of the connection was answered with: HEADERS, RST_STREAM, GOAWAY, or that it was closed."""
    names = {frames.HEADERS: "HEADERS", frames.RST_STREAM: "RST_STREAM", frames.GOAWAY: "GOAWAY"}
    with contextlib.suppress(TimeoutError):
        for kind, _, _, _ in frames.read_frames(connection, 5):
            if kind in names:
                yield names[kind]
                return
        yield "closed"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "application/grpc+json", "application/grpcx", ""]
)
async def test_another_content_type_is_answered(server: ServerProcess, witness: Witness, content_type: str) -> None:
    data = unary(request("one")).SerializeToString()

    def ask() -> list[str]:
        with frames.connect(server.address) as connection:
            connection.sendall(frames.call(1, GENERATE, data, content_type))
            return list(statuses(connection))

    assert await asyncio.to_thread(ask)


OPENINGS: Sequence[bytes] = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /inferd.v1.InferenceService/Generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
    + b"x" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,  # the beginning of TLS
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x00" * 100_000,
    frames.PREFACE[:10] + b"\x00" * 100,
    frames.PREFACE + b"\xff" * 10_000,
    frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, b"odd"),
    frames.PREFACE + frames.frame(frames.DATA, 0, 0, b"no stream"),
    frames.PREFACE + frames.frame(frames.SETTINGS) + frames.frame(frames.HEADERS, 0x5, 1, b"\xff" * 500),
    frames.PREFACE + frames.frame(frames.SETTINGS) + frames.frame(frames.PUSH_PROMISE, 0x4, 1, b"\x00" * 20),
    frames.PREFACE + frames.frame(frames.SETTINGS) + frames.frame(frames.CONTINUATION, 0x4, 1, b"\x00" * 20),
    frames.PREFACE + frames.frame(frames.SETTINGS) + frames.frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3,
)


async def test_bytes_that_are_no_http2_end_their_connection_alone(server: ServerProcess, witness: Witness) -> None:
    client = Client(server.address)
    bystander = await client.ask("one", 90_000).tokens(2)

    def knock(data: bytes) -> None:
        with frames.connect(server.address, greet=False, seconds=60) as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

    dice = random.Random(7)
    for data in (*OPENINGS, *(dice.randbytes(dice.randint(1, 5000)) for _ in range(50))):
        await asyncio.to_thread(knock, data)
        await bystander.tokens(len(bystander.output.ids) + 1)
    await bystander.leave()
    await client.close()


async def test_half_open_connections_hold_nothing_up(server: ServerProcess, witness: Witness) -> None:
    client = Client(server.address)
    with contextlib.ExitStack() as stack:
        for number in range(50):
            connection = stack.enter_context(frames.connect(server.address, greet=number % 2 == 0))
            if number % 5 == 0:
                connection.shutdown(socket.SHUT_WR)
            if number % 4 == 0:  # a call whose message never ends
                headers = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, frames.call_headers(GENERATE))
                with contextlib.suppress(OSError):
                    connection.sendall(headers + frames.frame(frames.DATA, 0, 1, frames.message(b"x" * 100)[:50]))
        for _ in range(5):
            assert (await client.answer("one")).ids == witness.right["one"]
    await client.close()


async def test_two_hundred_sockets_that_send_a_byte_now_and_then_hold_nobody_up(
    server: ServerProcess, witness: Witness
) -> None:
    data = (
        frames.PREFACE
        + frames.frame(frames.SETTINGS)
        + frames.call(1, GENERATE, unary(request("one")).SerializeToString())
    )
    client = Client(server.address)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(frames.connect(server.address, greet=False)) for _ in range(SLOW_SOCKETS)]
        for position in range(len(data) - 1):
            for connection in connections:
                connection.send(data[position : position + 1])
            if position % 20 == 0:
                assert (await client.answer("one", timeout=10)).ids == witness.right["one"]
    await client.close()
