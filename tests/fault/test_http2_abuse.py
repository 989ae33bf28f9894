"""HTTP/2 as an attacker speaks it. A connection may be lost over it; the others and the server may not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import pytest

from support import frames
from support.contention import Client, request, unary
from support.servers import ServerProcess
from support.wholeness import Witness

pytestmark = [pytest.mark.faults, pytest.mark.long]

GENERATE = "/inferd.v1.InferenceService/Generate"
CHECK = "/grpc.health.v1.Health/Check"
RESETS = 10_000
FLOOD = 50_000
BOMB_MIB = 16


@pytest.fixture
async def client(server: ServerProcess, witness: Witness) -> AsyncIterator[Client]:
    """An honest client, with a stream that runs through the attack."""
    client = Client(server.address)
    bystander = await client.ask("two", 90_000).tokens(2)
    yield client
    await bystander.tokens(len(bystander.output.ids) + 5)
    await bystander.leave()
    await client.close()


async def attack(server: ServerProcess, client: Client, witness: Witness, data: Iterable[bytes]) -> None:
    """Send all of it over one connection, reading nothing (until the server hangs up), while a client is answered."""

    def send() -> None:
        with frames.connect(server.address, seconds=60) as connection, contextlib.suppress(OSError):
            for piece in data:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            for _ in frames.read_frames(connection, 60):
                pass

    attacker = asyncio.create_task(asyncio.to_thread(send))
    answers = 0
    while not attacker.done():
        assert (await client.answer("one", timeout=10)).ids == witness.right["one"]
        answers += 1
    await attacker
    print(f"{answers} answers meanwhile")


def resets(method: str, payload: bytes) -> Iterator[bytes]:
    """Calls that are reset as soon as they are made (CVE-2023-44487)."""
    for number in range(RESETS):
        stream = 2 * number + 1
        code = frames.CANCEL.to_bytes(4)
        yield frames.call(stream, method, payload) + frames.frame(frames.RST_STREAM, 0, stream, code)


def endless_headers(size: int) -> Iterator[bytes]:
    """A header block that goes on in CONTINUATION frames (CVE-2024-27316)."""
    yield frames.frame(frames.HEADERS, 0, 1, frames.call_headers(GENERATE))
    more = frames.header_block(*(("x-more", "y" * 1000) for _ in range(15)))
    for _ in range(size // len(more)):
        yield frames.frame(frames.CONTINUATION, 0, 1, more)


def indexed_bomb(size: int) -> Iterator[bytes]:
    """One large header put into the table, and then named by one byte each, over and over (CVE-2016-1544)."""
    large = b"\x40" + frames.header_block(("x", "y" * 3000))[1:]  # literal with incremental indexing
    block = frames.call_headers(GENERATE) + large + b"\xbe" * (size // 3000)  # 62: the newest entry
    first, rest = block[: frames.MAX_FRAME_NBYTES], block[frames.MAX_FRAME_NBYTES :]
    yield frames.frame(frames.HEADERS, 0 if rest else frames.END_HEADERS, 1, first)
    if rest:
        yield frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, rest)


PAYLOAD = unary(request("one", 50)).SerializeToString()
ATTACKS: dict[str, Callable[[], Iterable[bytes]]] = {
    "rapid reset of generations": lambda: resets(GENERATE, PAYLOAD),
    "rapid reset of probes": lambda: resets(CHECK, b""),
    "settings": lambda: (frames.frame(frames.SETTINGS) * 100 for _ in range(FLOOD // 100)),
    "pings": lambda: (frames.frame(frames.PING, 0, 0, b"12345678") * 100 for _ in range(FLOOD // 100)),
    "empty data": lambda: (
        frames.frame(frames.HEADERS, frames.END_HEADERS, 1, frames.call_headers(GENERATE)),
        *(frames.frame(frames.DATA, 0, 1) * 100 for _ in range(FLOOD // 100)),
    ),
    "priorities": lambda: (
        frames.frame(frames.PRIORITY, 0, 2 * number + 1, b"\x00\x00\x00\x00\x10") for number in range(FLOOD)
    ),
    "window updates": lambda: (frames.frame(frames.WINDOW_UPDATE, 0, 0, b"\x00\x00\x00\x01") for _ in range(FLOOD)),
    "endless headers": lambda: endless_headers(BOMB_MIB * 2**20),
    "a header bomb": lambda: indexed_bomb(64 * 2**20),
    "streams that never send": lambda: (
        frames.frame(frames.HEADERS, frames.END_HEADERS, 2 * number + 1, frames.call_headers(GENERATE))
        for number in range(2000)
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_costs_its_own_connection_at_most(
    server: ServerProcess, client: Client, witness: Witness, name: str
) -> None:
    if name.startswith("rapid reset"):
        witness.more_mib += RESETS / 100  # 10 KiB for each call that waits to be looked at; malloc keeps them
    await attack(server, client, witness, ATTACKS[name]())
