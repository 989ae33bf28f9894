"""GIF: the size of its first frame's canvas, and whether there is a second frame."""

import struct

from .header import Damaged, Format, Header

SIGNATURES = (b"GIF87a", b"GIF89a")
MAX_BLOCKS = 262_144
"""Blocks of up to 255 bytes, extensions and frames; twice what 20 MiB need, at a time that is bounded."""
EXTENSION, IMAGE, TRAILER = 0x21, 0x2C, 0x3B


def read(data: bytes) -> Header:
    """The header of a whole file; an animation is read up to its second frame. Raises Damaged."""
    try:
        return _Reader(data).read()
    except (IndexError, struct.error):
        raise Damaged("is cut off") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._blocks = 0

    def read(self) -> Header:
        width, height, flags = struct.unpack_from("<HHB", self._data, 6)
        at = 13 + _table_nbytes(flags)
        window: tuple[int, int, int, int] | None = None
        while (kind := self._data[at]) != TRAILER:
            self._count()
            if kind == EXTENSION:
                at = self._skip(at + 2)
                continue
            if kind != IMAGE:
                raise Damaged(f"has no block at byte {at}")
            if window is not None:
                return Header(Format.GIF, width, height, body=b"", frames=2)
            left, top, columns, rows, flags = struct.unpack_from("<HHHHB", self._data, at + 1)
            window = (left, top, left + columns, top + rows)
            at = self._skip(at + 10 + _table_nbytes(flags) + 1)
        if window is None:
            raise Damaged("holds no pixels")
        if window[0] == window[2] or window[1] == window[3]:
            raise Damaged("has a frame without pixels")
        return Header(Format.GIF, max(width, window[2]), max(height, window[3]), body=self._data, window=window)

    def _skip(self, at: int) -> int:
        """Behind a run of blocks."""
        while (nbytes := self._data[at]) != 0:
            self._count()
            at += 1 + nbytes
        return at + 1

    def _count(self) -> None:
        self._blocks += 1
        if self._blocks > MAX_BLOCKS:
            raise Damaged(f"has more than {MAX_BLOCKS} blocks")


def _table_nbytes(flags: int) -> int:
    """Bytes of a table of colours."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0
