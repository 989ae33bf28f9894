"""JPEG: the segments that make pixels, without thumbnails, profiles, comments and further pictures (MPO)."""

import re
import struct
from collections.abc import Iterator

from . import exif
from .header import Damaged, Format, Header

SIGNATURE = b"\xff\xd8\xff"
MAX_SEGMENTS = 4096
MAX_SCANS = 64
"""Each scan of a progressive file passes over the whole picture, however few bytes it has; honest ones have ten."""

EOI, SOS, APP0, APP1, APP14, COM = 0xD9, 0xDA, 0xE0, 0xE1, 0xEE, 0xFE
FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
DROPPED = frozenset({*range(0xE0, 0xF0), COM} - {APP0, APP14})
"""Metadata; APP14 (Adobe) tells how colours are coded."""
_MARKER = re.compile(rb"\xff+([\xc0-\xcf\xd9-\xfe])")
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""The end of a scan: stuffed bytes, restart markers and fill bytes belong to it."""


def read(data: bytes) -> Header:
    """The header of a whole file. Raises Damaged."""
    kept: list[bytes | memoryview] = [b"\xff\xd8"]
    view = memoryview(data)
    size: tuple[int, int] | None = None
    orientation = 1
    scans = 0
    for marker, start, end in _segments(data):
        if marker in FRAMES:
            if size is not None:
                raise Damaged("has two headers")
            size = _size(data[start:end])
        elif marker == SOS:
            scans += 1
        elif marker == APP1 and orientation == 1 and data.startswith(exif.PREFIX, start + 2):
            orientation = exif.orientation(data[start + 2 : end])
        if marker not in DROPPED:
            kept += [bytes((0xFF, marker)), view[start:end]]
    if size is None or not scans:
        raise Damaged("holds no pixels")
    if scans > MAX_SCANS:
        raise Damaged(f"has {scans} scans; at most {MAX_SCANS} are read")
    return Header(Format.JPEG, *size, body=b"".join((*kept, b"\xff\xd9")), orientation=orientation)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start behind it, end) up to the end of the image; a scan's coded pixels belong to its segment."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.match(data, at)
        if found is None:
            raise Damaged("is cut off" if at >= len(data) else f"has no segment at byte {at}")
        marker = found[1][0]
        if marker == EOI:
            return
        at = _end(data, marker, found.end())
        yield marker, found.end(), at
    raise Damaged(f"has more than {MAX_SEGMENTS} segments")


def _end(data: bytes, marker: int, start: int) -> int:
    nbytes = int.from_bytes(data[start : start + 2], "big")
    end = start + nbytes
    if nbytes < 2 or end > len(data):
        raise Damaged("is cut off")
    if marker != SOS:
        return end
    found = _NEXT_MARKER.search(data, end)
    if found is None:
        raise Damaged("is cut off")
    return found.start()


def _size(segment: bytes) -> tuple[int, int]:
    """(width, height) of a frame header."""
    try:
        bits, height, width = struct.unpack_from(">BHH", segment, 2)
    except struct.error:
        raise Damaged("has a broken header") from None
    if bits != 8:
        raise Damaged(f"has {bits} bits a channel; only 8 can be read")
    return width, height
