"""The HTTP port that Prometheus reads: GET /metrics and nothing else, one request per connection, all of it bounded."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

Render = Callable[[str], Awaitable[tuple[bytes, str]]]
"""(text, content type) for an Accept header."""

MAX_HEAD_NBYTES = 8192
MAX_CONNECTIONS = 8
"""One more is closed without an answer."""
CONNECTION_SECONDS = 10.0
"""From its opening to its end; Prometheus gives up after as long by default."""


class Exposition:
    """An HTTP/1.1 server on the event loop."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, listen: str) -> str:
        """Open `HOST:PORT`; returns the bound address with the real port.

        Raises:
            OSError: it can't be bound; the message names it.
        """
        host, port = listen.rsplit(":", 1)
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=MAX_HEAD_NBYTES, reuse_address=True
            )
        except OSError as error:
            raise OSError(f"can't serve metrics at {listen}: {error.strerror or error}") from None
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close the port and cut what is open. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        # Not cancelled: on Python 3.11 asyncio logs that of a connection's task as an error.
        for writer in self._connections.values():
            writer.transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "asyncio serves each connection in a task"
        self._connections[task] = writer
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                writer.write(await self._response(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # a client that is slow or gone is owed nothing
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _response(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _message(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request, *fields = head.decode("latin-1").split("\r\n")
        method, target, version = [*request.split(" "), "", "", ""][:3]
        if not version.startswith("HTTP/1."):
            return _message(HTTPStatus.BAD_REQUEST)
        if target.partition("?")[0] != "/metrics":
            return _message(HTTPStatus.NOT_FOUND)
        if method not in {"GET", "HEAD"}:
            return _message(HTTPStatus.METHOD_NOT_ALLOWED, fields="Allow: GET, HEAD\r\n")
        body, content_type = await self._render(_field(fields, "accept"))
        message = _message(HTTPStatus.OK, body, f"Content-Type: {content_type}\r\n")
        return message if method == "GET" else message.removesuffix(body)


def _field(fields: list[str], name: str) -> str:
    for field in fields:
        key, _, value = field.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _message(status: HTTPStatus, body: bytes = b"", fields: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{fields}\r\n"
    )
    return head.encode("latin-1") + body
