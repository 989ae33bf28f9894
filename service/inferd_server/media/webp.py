"""WebP: the size of its canvas and its frames."""

import struct
from collections.abc import Iterator

from . import exif
from .header import Damaged, Format, Header

MAX_CHUNKS = 4096
ANIMATED = 0x02


def is_webp(data: bytes) -> bool:
    """Whether the first bytes say so."""
    return data.startswith(b"RIFF") and data[8:12] == b"WEBP"


def read(data: bytes) -> Header:
    """The header of a whole file. Raises Damaged."""
    size: tuple[int, int] | None = None
    frames = 0
    orientation = 1
    for kind, start, end in _chunks(data):
        if size is None:
            size = _size(kind, data[start : start + 10])
        if kind == b"ANMF":
            frames += 1
        elif kind == b"EXIF":
            orientation = exif.orientation(data[start:end])
    if size is None:
        raise Damaged("holds no pixels")
    return Header(Format.WEBP, *size, body=data, frames=max(frames, 1), orientation=orientation)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start of its data, end of its data), within what the file says is its size."""
    stop = 8 + int.from_bytes(data[4:8], "little")
    if stop > len(data):
        raise Damaged("is cut off")
    at = 12
    for _ in range(MAX_CHUNKS):
        if at >= stop:
            return
        if at + 8 > stop:
            raise Damaged("is cut off")
        kind, nbytes = struct.unpack_from("<4sI", data, at)
        end = at + 8 + nbytes
        if end > stop:
            raise Damaged("is cut off")
        yield kind, at + 8, end
        at = end + nbytes % 2
    raise Damaged(f"has more than {MAX_CHUNKS} chunks")


def _size(kind: bytes, start: bytes) -> tuple[int, int]:
    """(width, height) by the first chunk, of which `start` has the first ten bytes."""
    if kind == b"VP8X" and len(start) >= 10:
        return int.from_bytes(start[4:7], "little") + 1, int.from_bytes(start[7:10], "little") + 1
    if kind == b"VP8L" and start[:1] == b"\x2f" and len(start) >= 5:
        bits = int.from_bytes(start[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and start[3:6] == b"\x9d\x01\x2a" and len(start) >= 10:
        width, height = struct.unpack_from("<HH", start, 6)
        return width & 0x3FFF, height & 0x3FFF
    raise Damaged("has a broken header")
