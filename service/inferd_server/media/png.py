"""PNG: the chunks that make pixels, out of all that a file may hold (text, profiles, animations, bombs in each)."""

import struct
import zlib
from collections.abc import Iterator

from . import exif
from .header import Damaged, Format, Header, Key

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_CHUNKS = 65_536
MAX_HEADER_NBYTES = 1024
"""Most bytes of the chunks that have a known small size: header, palette, transparency."""
KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
GREY, COLOUR, PALETTE = 0, 2, 3
DEPTHS = frozenset({1, 2, 4, 8, 16})


def read(data: bytes) -> Header:
    """The header of a whole file. Raises Damaged."""
    chunks: dict[bytes, bytes] = {}
    pixels: list[memoryview] = []
    view = memoryview(data)
    for kind, start, end in _chunks(data):
        if kind == b"IDAT":
            pixels.append(view[start - 8 : end + 4])
        elif kind in chunks and kind in KEPT:
            raise Damaged(f"has two chunks {_name(kind)}")
        elif kind in {b"acTL", b"eXIf"} or kind in KEPT:
            chunks[kind] = data[start:end]
    if not pixels:
        raise Damaged("holds no pixels")
    return _header(chunks, pixels)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start of its data, end of its data) up to the end of the image; checksums of those that count hold."""
    at = len(SIGNATURE)
    for number in range(MAX_CHUNKS):
        if at + 12 > len(data):
            raise Damaged("is cut off")
        nbytes, kind = struct.unpack_from(">I4s", data, at)
        start, end = at + 8, at + 8 + nbytes
        if end + 4 > len(data):
            raise Damaged("is cut off")
        if (number == 0) != (kind == b"IHDR"):
            raise Damaged("does not begin with its header")
        _check_chunk(data, kind, start, end)
        yield kind, start, end
        if kind == b"IEND":
            return
        at = end + 4
    raise Damaged(f"has more than {MAX_CHUNKS} chunks")


def _check_chunk(data: bytes, kind: bytes, start: int, end: int) -> None:
    if kind not in KEPT:
        if not kind[0] & 0x20:
            raise Damaged(f"has a chunk {_name(kind)}, which is needed and unknown")
        return
    if kind != b"IDAT" and end - start > MAX_HEADER_NBYTES:
        raise Damaged(f"has a chunk {_name(kind)} of {end - start} bytes")
    if zlib.crc32(memoryview(data)[start - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
        raise Damaged(f"has a chunk {_name(kind)} with a wrong checksum")


def _header(chunks: dict[bytes, bytes], pixels: list[memoryview]) -> Header:
    ihdr = chunks[b"IHDR"]
    if len(ihdr) != 13:
        raise Damaged(f"has a header of {len(ihdr)} bytes; 13 are needed")
    width, height, depth, colour = struct.unpack_from(">IIBB", ihdr)
    if depth not in DEPTHS:
        raise Damaged(f"has {depth} bits a channel")
    kept = [_chunk(b"IHDR", ihdr)]
    if colour == PALETTE:
        if b"PLTE" not in chunks:
            raise Damaged("has no palette")
        kept += [_chunk(kind, chunks[kind]) for kind in (b"PLTE", b"tRNS") if kind in chunks]
    return Header(
        Format.PNG,
        width,
        height,
        body=b"".join((SIGNATURE, *kept, *pixels, _chunk(b"IEND", b""))),
        frames=_frames(chunks.get(b"acTL", b"")),
        orientation=exif.orientation(chunks.get(b"eXIf", b"")),
        key=_key(chunks[b"tRNS"], depth, colour) if b"tRNS" in chunks else None,
    )


def _frames(actl: bytes) -> int:
    return max(int.from_bytes(actl[:4], "big"), 1)


def _key(trns: bytes, depth: int, colour: int) -> Key | None:
    """The level or the colour that is transparent; a palette has its own table instead."""
    if colour not in {GREY, COLOUR}:
        return None
    if depth > 8:
        raise Damaged("has 16 bits a channel and a transparent colour; only one of them can be read")
    if len(trns) != (2 if colour == GREY else 6):
        raise Damaged(f"has a chunk tRNS of {len(trns)} bytes")
    most = 2**depth - 1
    # Pixels are read on a scale of 0 to 255, whatever their depth.
    levels = [level * 255 // most for level in struct.unpack(f">{len(trns) // 2}H", trns)]
    if max(levels) > 255:
        return None  # no pixel has it
    return levels[0] if colour == GREY else (levels[0], levels[1], levels[2])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _name(kind: bytes) -> str:
    return repr(kind.decode("latin-1"))
