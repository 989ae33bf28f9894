"""Addresses to listen on: parsed, tried first with a plain socket (whose errors say what is wrong), then given to grpc.

A taken port is found by the trial: grpc itself says only "failed to bind" and prints a page about it.
"""

import asyncio
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from inferd_server.core.tls import TlsIdentity

MAX_UNIX_PATH_NBYTES = 107
CONNECT_SECONDS = 1.0
LOCK_SECONDS = 0.05
LOCK_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where and how to listen.

    Attributes:
        address: `HOST:PORT` (port 0: any free one; IPv6 in brackets) or `unix:/path`.
        socket_mode: of a unix socket's file.
        identity: what TLS presents; None: plaintext.
        probe_address: `HOST:PORT` that answers health checks alone, in plaintext; None: none.
    """

    address: str
    max_message_nbytes: int
    socket_mode: int = 0o600
    identity: TlsIdentity | None = None
    probe_address: str | None = None


async def bind(
    server: grpc.aio.Server,
    address: str,
    *,
    credentials: grpc.ServerCredentials | None = None,
    socket_mode: int = 0o600,
) -> str:
    """Bind, in plaintext without credentials; returns the address with the real port.

    Raises:
        ValueError: not an address.
        OSError: it can't be bound; the message names it.
    """
    if address.startswith("unix:"):
        path = Path("/" + address.removeprefix("unix:").lstrip("/"))
        return await _bind_unix(server, path, credentials, socket_mode)
    host, port = split_host_port(address)
    if port:
        await _try_tcp(host, port, address)
    try:
        bound = _add_port(server, address, credentials)
    except RuntimeError:
        raise OSError(errno.EADDRNOTAVAIL, f"can't listen on {address}") from None
    return f"{address.rpartition(':')[0]}:{bound}"


def _add_port(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    if credentials is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, credentials)


def split_host_port(address: str) -> tuple[str, int]:
    """(host without brackets, port).

    Raises:
        ValueError: anything else than HOST:PORT or [IPV6]:PORT.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    is_named = host and (":" in host) == bracketed and not set(host) & set("[]")
    if not colon or not is_named or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is neither HOST:PORT nor unix:/path")
    return host, int(port)


async def _try_tcp(host: str, port: int, address: str) -> None:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(where)
                trial.listen(1)
    except OSError as error:
        raise OSError(error.errno, f"can't listen on {address}: {error.strerror}") from None


async def _bind_unix(
    server: grpc.aio.Server, path: Path, credentials: grpc.ServerCredentials | None, socket_mode: int
) -> str:
    address = f"unix:{path}"
    if len(os.fsencode(path)) > MAX_UNIX_PATH_NBYTES:
        raise OSError(
            errno.ENAMETOOLONG, f"can't listen on {address}: at most {MAX_UNIX_PATH_NBYTES} bytes are allowed"
        )
    async with _alone_in(path.parent, address):
        await asyncio.to_thread(_remove_stale_socket, path, address)
        try:
            with _private_files():
                _add_port(server, address, credentials)
            os.chmod(path, socket_mode)  # noqa: PTH101  # not a blocking call to speak of, and nothing may come between
        except (OSError, RuntimeError):
            raise OSError(errno.EACCES, f"can't listen on {address}: its folder is not writable") from None
    return address


@asynccontextmanager
async def _alone_in(folder: Path, address: str) -> AsyncIterator[None]:
    """One server at a time looks for a stale socket here and puts its own in the place: two that start together would
    each take the other's for stale. The lock is on the folder itself, so nothing is left behind."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise OSError(error.errno, f"can't listen on {address}: its folder: {error.strerror}") from None
    try:
        await _lock(descriptor, address)
        yield
    finally:
        os.close(descriptor)


async def _lock(descriptor: int, address: str) -> None:
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(LOCK_SECONDS)
        else:
            return
    raise OSError(errno.EADDRINUSE, f"can't listen on {address}: another process keeps its folder locked")


def _remove_stale_socket(path: Path, address: str) -> None:
    """Remove what a server that died has left; never a file of another kind, never a socket that somebody serves."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, f"can't listen on {address}: a file that is no socket stands there")
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(CONNECT_SECONDS)
        if trial.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, f"can't listen on {address}: another server is using it")
    path.unlink(missing_ok=True)


@contextmanager
def _private_files() -> Iterator[None]:
    """Files made inside are their owner's alone, from the first moment on; their mode is widened afterwards."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
