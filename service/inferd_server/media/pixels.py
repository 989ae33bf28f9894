"""From a checked file to its pixels, through Pillow: upright RGB, what is transparent on white. No colour management.

Formats' readers are called by name: `Image.open` would look for one, and take in more formats than ours.
"""

import struct
import zlib
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO

from PIL import Image, ImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from inferd_server.core.media import MAX_PIXELS, Picture

from .header import Damaged, Format, Header

# Process-wide, for whoever else opens images in this process. Ours were judged before Pillow sees them.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS
ImageFile.LOAD_TRUNCATED_IMAGES = False

READERS: dict[Format, Callable[[BytesIO], ImageFile.ImageFile]] = {
    Format.PNG: PngImageFile,
    Format.JPEG: JpegImageFile,
    Format.WEBP: WebPImageFile,
    Format.GIF: GifImageFile,
}
# What Pillow raises on broken pixels: as many types as it has readers.
_FAILURES = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    ArithmeticError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
# How a picture is turned upright, by its EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_WHITE = (255, 255, 255)


def to_picture(header: Header) -> Picture:
    """Decode; blocking, a few nanoseconds a pixel. Raises Damaged."""
    image = _flat(_load(header), header)
    if header.orientation in _TURNS:
        image = image.transpose(_TURNS[header.orientation])
    width, height = image.size
    rgb = image.tobytes()
    digest = sha256(f"{width}x{height}:".encode())
    digest.update(rgb)
    return Picture(width, height, rgb, digest.hexdigest())


def _load(header: Header) -> Image.Image:
    try:
        image = READERS[header.format](BytesIO(header.body))
        if image.size != (header.width, header.height):
            raise Damaged("has two sizes")
        image.load()
    except Damaged:
        raise
    except _FAILURES:
        raise Damaged("has pixels that can't be decoded") from None
    return image


def _flat(image: Image.Image, header: Header) -> Image.Image:
    """Three channels of 8 bits, on white."""
    if image.mode.startswith("I;16"):
        image = image.point(lambda level: level * (1 / 256)).convert("L")
    if header.key is not None:
        image.info["transparency"] = header.key
    if header.window is not None and header.window != (0, 0, *image.size):
        left, top, _, _ = header.window
        return _on_white(image.crop(header.window).convert("RGBA"), image.size, (left, top))
    if image.has_transparency_data:
        return _on_white(image.convert("RGBA"), image.size, (0, 0))
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image, size: tuple[int, int], corner: tuple[int, int]) -> Image.Image:
    canvas = Image.new("RGB", size, _WHITE)
    canvas.paste(image, corner, image)
    return canvas
