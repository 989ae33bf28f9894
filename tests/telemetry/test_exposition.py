"""The metrics port: one path, bounded in every way, never in the way of a shutdown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from inferd_server.telemetry import exposition
from inferd_server.telemetry.exposition import MAX_CONNECTIONS, MAX_HEAD_NBYTES, Exposition

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


async def render(accept: str) -> tuple[bytes, str]:
    return b"up 1\n", accept or "text/plain"


class Port:
    """An open port: its address and its server."""

    def __init__(self, server: Exposition, address: str) -> None:
        self.server = server
        self.address = address
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
        await self.server.close()

    async def ask(self, request: bytes) -> tuple[str, bytes]:
        """(status line, rest) of the answer."""
        reader, writer = await self.connect()
        writer.write(request)
        status, _, rest = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n")
        writer.transport.abort()
        return status.decode(), rest


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    server = Exposition(render)
    opened = Port(server, await server.start("127.0.0.1:0"))
    yield opened
    await opened.close()


async def test_get_answers_with_the_text_in_the_format_asked_for(port: Port) -> None:
    status, rest = await port.ask(GET)
    assert status == "HTTP/1.1 200 OK"
    assert rest.endswith(b"\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nup 1\n")
    _, rest = await port.ask(b"GET /metrics?x=1 HTTP/1.0\r\nAccept : application/openmetrics-text \r\n\r\n")
    assert b"Content-Type: application/openmetrics-text\r\n" in rest
    _, rest = await port.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert rest.endswith(b"Content-Length: 5\r\nContent-Type: text/plain\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"\xff\x00\xfe\r\n\r\n", "400 Bad Request"),
        (b"PRI * HTTP/2.0\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_NBYTES, "431 Request Header Fields Too Large"),
    ],
)
async def test_everything_else_is_refused(port: Port, request_bytes: bytes, status: str) -> None:
    assert (await port.ask(request_bytes))[0] == f"HTTP/1.1 {status}"


async def test_a_client_that_dawdles_is_cut(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "CONNECTION_SECONDS", 0.1)
    assert await port.ask(GET[:-2]) == ("", b"")


async def test_a_client_that_leaves_is_no_error(port: Port) -> None:
    _, writer = await port.connect()
    writer.write(GET[:-2])
    writer.transport.abort()
    assert (await port.ask(GET))[0] == "HTTP/1.1 200 OK"


async def test_connections_are_bounded_and_come_back(port: Port) -> None:
    idle = [await port.connect() for _ in range(MAX_CONNECTIONS)]
    for _, writer in idle:
        writer.write(b"GET")
    await asyncio.sleep(0.05)
    with contextlib.suppress(ConnectionError):
        assert await port.ask(GET) == ("", b"")
    for _, writer in idle:
        writer.transport.abort()
    await asyncio.sleep(0.05)
    assert (await port.ask(GET))[0] == "HTTP/1.1 200 OK"


async def test_closing_cuts_what_is_open(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(b"GET")
    await asyncio.sleep(0.05)
    await asyncio.wait_for(port.server.close(), 1)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 1) == b""
    with pytest.raises(OSError, match="onnect"):
        await port.connect()


async def test_a_port_that_is_taken_is_named(port: Port) -> None:
    second = Exposition(render)
    with pytest.raises(OSError, match=f"can't serve metrics at {port.address}"):
        await second.start(port.address)
    await second.close()
