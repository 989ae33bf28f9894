"""The one thing that EXIF has to say about pixels: how the picture is turned upright.

Read here, since a general reader copies what each of thousands of entries points at, and all may point at the same
megabytes.
"""

import struct

ORIENTATION_TAG = 0x0112
SHORT = 3
ENTRY_NBYTES = 12
PREFIX = b"Exif\0\0"
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def orientation(exif: bytes) -> int:
    """1 to 8; 1 (upright) where the data says nothing that is valid."""
    tiff = exif.removeprefix(PREFIX)
    order = BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return 1
    try:
        return _find(tiff, order)
    except struct.error:  # cut off
        return 1


def _find(tiff: bytes, order: str) -> int:
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, start)
    for at in range(start + 2, start + 2 + count * ENTRY_NBYTES, ENTRY_NBYTES):
        tag, kind, values, value = struct.unpack_from(f"{order}HHIH", tiff, at)
        if tag == ORIENTATION_TAG:
            return int(value) if kind == SHORT and values == 1 and 1 <= value <= 8 else 1
    return 1
