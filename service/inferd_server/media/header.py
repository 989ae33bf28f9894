"""Words of this room: the formats, what a file's header tells, and damage."""

from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """What is decoded; everything else is refused."""

    PNG = "PNG"
    JPEG = "JPEG"
    WEBP = "WebP"
    GIF = "GIF"


Key = int | tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """What a file tells before a pixel of it is decoded.

    Attributes:
        width: in pixels, as stored; `height` too.
        body: what the decoder gets: the file without its metadata.
        frames: 1, or how many pictures an animation has at least.
        orientation: 1 to 8, as EXIF has it: how the stored picture is turned upright.
        key: the grey level or colour that stands for full transparency, on a scale of 0 to 255.
        window: the part of the picture that has pixels (left, top, right, bottom); None: all of it.
    """

    format: Format
    width: int
    height: int
    body: bytes
    frames: int = 1
    orientation: int = 1
    key: Key | None = None
    window: tuple[int, int, int, int] | None = None

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height


class Damaged(ValueError):
    """The bytes are not what their format asks for; the message completes "the PNG …"."""
