"""HTTP/2 by hand, for clients that no library would let us write. Just enough of RFC 9113: no Huffman, no tables."""

import socket
import struct
import time
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
CANCEL = 8
MAX_FRAME_NBYTES = 16_384


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame, whatever its payload."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(*headers: tuple[str, str]) -> bytes:
    """Headers as literals without indexing."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def _text(text: str) -> bytes:
    data = text.encode()
    return _integer(len(data), 7) + data


def _integer(value: int, bits: int) -> bytes:
    """An integer with a prefix of so many bits, RFC 7541 §5.1."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([value])
    value -= limit
    parts = [limit]
    while value >= 128:
        parts.append(value % 128 + 128)
        value //= 128
    return bytes([*parts, value])


def call_headers(method: str, content_type: str = "application/grpc", more: Sequence[tuple[str, str]] = ()) -> bytes:
    """The header block of a gRPC call."""
    fixed = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
    )
    return header_block(*fixed, ("content-type", content_type), *more)


def message(payload: bytes) -> bytes:
    """A gRPC message: uncompressed, with its length."""
    return b"\x00" + struct.pack(">I", len(payload)) + payload


def call(stream: int, method: str, payload: bytes, content_type: str = "application/grpc") -> bytes:
    """The frames of a whole unary call."""
    headers = frame(HEADERS, END_HEADERS, stream, call_headers(method, content_type))
    return headers + frame(DATA, END_STREAM, stream, message(payload))


def connect(address: str, *, greet: bool = True, seconds: float = 20.0) -> socket.socket:
    """A connection; with `greet` the preface and empty settings are sent."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if greet:
        connection.sendall(PREFACE + frame(SETTINGS))
    return connection


def read_frames(connection: socket.socket, seconds: float = 20.0) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each frame until the other end closes; TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    rest = b""
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            data = connection.recv(65_536)
        except ConnectionError:
            return
        if not data:
            return
        rest += data
        while len(rest) >= 9 and len(rest) >= 9 + (length := int.from_bytes(rest[:3])):
            yield rest[3], rest[4], int.from_bytes(rest[5:9]), rest[9 : 9 + length]
            rest = rest[9 + length :]
