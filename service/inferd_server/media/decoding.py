"""Bytes into pictures: every header is read and judged before the first pixel is decoded."""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from inferd_server.core.errors import FieldViolation, echo, invalid_parameter
from inferd_server.core.media import Blob, MediaLimits, Picture

from . import gif, jpeg, pixels, png, webp
from .header import Damaged, Format, Header
from .sniffing import READ, contradicts, describe, sniff

MAX_SIDE = 65_535
_READERS = {Format.PNG: png.read, Format.JPEG: jpeg.read, Format.WEBP: webp.read, Format.GIF: gif.read}


def decode(
    blobs: Sequence[Blob], limits: MediaLimits, is_wanted: Callable[[], bool] = lambda: True
) -> tuple[Picture, ...]:
    """Images into pictures; blocking: 10 to 50 nanoseconds a pixel, and at most 23 bytes a pixel of the largest.

    Args:
        is_wanted: asked before each image; where it says no, only those before it are returned.

    Raises:
        InferdError: INVALID_PARAMETER; with every violation that the headers show, and then nothing was decoded, or
            with the first image whose pixels are damaged.
    """
    headers = _read_all(blobs, limits)
    wanted = takewhile(lambda _: is_wanted(), zip(blobs, headers, strict=True))
    return tuple(_to_picture(blob, header) for blob, header in wanted)


def _read_all(blobs: Sequence[Blob], limits: MediaLimits) -> list[Header]:
    if len(blobs) > limits.max_images:
        text = f"holds {len(blobs)} images; at most {limits.max_images} are allowed"
        raise invalid_parameter([FieldViolation("chat.messages", text)])
    headers: list[Header] = []
    found: list[FieldViolation] = []
    for blob in blobs:
        header = _read(blob, limits, found)
        if header is None:
            continue
        excesses = [FieldViolation(f"{blob.field}.data", text) for text in _excesses(header, limits)]
        found += excesses
        if not excesses:
            headers.append(header)
    total = sum(header.pixels for header in headers)
    if total > limits.max_request_pixels:
        text = f"its images have {total} pixels in all; at most {limits.max_request_pixels} are allowed"
        found.append(FieldViolation("chat.messages", text))
    if found:
        raise invalid_parameter(found)
    return headers


def _to_picture(blob: Blob, header: Header) -> Picture:
    try:
        return pixels.to_picture(header)
    except Damaged as error:
        raise invalid_parameter([_damage(blob, header.format, error)]) from None


def _read(blob: Blob, limits: MediaLimits, found: list[FieldViolation]) -> Header | None:
    """The header; None where something is wrong, which goes to `found`."""
    data = blob.data
    if len(data) > limits.max_image_nbytes:
        text = f"has {len(data)} bytes; at most {limits.max_image_nbytes} are allowed"
        found.append(FieldViolation(f"{blob.field}.data", text))
        return None
    kind = sniff(data)
    if kind is None:
        found.append(FieldViolation(f"{blob.field}.data", f"is {describe(data)}; {READ}"))
        return None
    if contradicts(blob.mime_type, kind):
        text = f"says {echo(blob.mime_type)!r}, but the bytes are {kind}"
        found.append(FieldViolation(f"{blob.field}.mime_type", text))
        return None
    try:
        return _READERS[kind](data)
    except Damaged as error:
        found.append(_damage(blob, kind, error))
        return None


def _excesses(header: Header, limits: MediaLimits) -> Iterator[str]:
    size = f"{header.width}x{header.height}"
    if not header.pixels:
        yield f"the {header.format} is {size} pixels: nothing to see"
    if header.frames > 1:
        yield f"the {header.format} is an animation ({header.frames} frames or more); only still images are read"
    if max(header.width, header.height) > MAX_SIDE:
        yield f"is {size} pixels; a side may have at most {MAX_SIDE}"
    if header.pixels > limits.max_image_pixels:
        yield f"is {size}, which are {header.pixels} pixels; at most {limits.max_image_pixels} are allowed"


def _damage(blob: Blob, kind: Format, error: Damaged) -> FieldViolation:
    return FieldViolation(f"{blob.field}.data", f"the {kind} {error}")
