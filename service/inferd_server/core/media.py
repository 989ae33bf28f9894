"""Words about media: bytes as they came, and what they show."""

from dataclasses import dataclass
from enum import StrEnum


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
    data: bytes
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
    rgb: bytes
    digest: str
