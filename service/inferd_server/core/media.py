"""Words about media: bytes as they came, and what they show."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MAX_PIXELS = 2**27
"""The most pixels that any limit may allow."""


class MediaKind(StrEnum):
    """What a part of a message is, beside text; the values are the names of its fields in the proto."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class Blob:
    """Media as it came over the wire, not looked at yet.

    Attributes:
        mime_type: as stated; not believed.
        field: its path in the request, for errors: chat.messages[0].parts[1].image.
    """

    kind: MediaKind
    mime_type: str
    data: bytes = dataclasses.field(repr=False)
    field: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded image: RGB, 8 bits a channel, upright, row by row from the top.

    Attributes:
        rgb: 3 * width * height bytes.
        digest: sha256 of size and rgb, in hex.
    """

    width: int
    height: int
    rgb: bytes = dataclasses.field(repr=False)
    digest: str


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """How much media one request may hold; nothing beyond it is decoded.

    Attributes:
        max_images: images in all its messages.
        max_image_nbytes: bytes of each image as it comes.
        max_image_pixels: width times height of each image.
        max_request_pixels: pixels of all its images together.
    """

    max_images: int = 16
    max_image_nbytes: int = 20 * 2**20
    max_image_pixels: int = 16_777_216
    max_request_pixels: int = 33_554_432

    def narrowed(self, other: "MediaLimits") -> "MediaLimits":
        """The lower of both, limit by limit."""
        return MediaLimits(
            max_images=min(self.max_images, other.max_images),
            max_image_nbytes=min(self.max_image_nbytes, other.max_image_nbytes),
            max_image_pixels=min(self.max_image_pixels, other.max_image_pixels),
            max_request_pixels=min(self.max_request_pixels, other.max_request_pixels),
        )


class PictureFeatures(Protocol):
    """What an engine reads the pictures of one prompt from; opaque to all others, who carry it around."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""

    @property
    def work_nbytes(self) -> int:
        """Most bytes that looking at them takes."""

    @property
    def identity(self) -> str:
        """The same for the same pictures in the same order, and different for others."""


_NO_BOUND = 2**63 - 1
NO_MEDIA_LIMITS = MediaLimits(_NO_BOUND, _NO_BOUND, _NO_BOUND, _NO_BOUND)
"""Narrows nothing."""
