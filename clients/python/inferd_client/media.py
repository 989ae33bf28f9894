"""Images for messages."""

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

# The beginnings of what servers read.
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_UNKNOWN = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a message, between its texts:

        client.generate("vlm", messages=[("user", ["What is this?", Image.from_file("cat.jpeg")])])

    data: the bytes of a PNG, JPEG, WebP or GIF; servers fetch no URL and open no path.
    mime_type: told from the bytes where it is left out.
    """

    data: bytes = field(repr=False)
    mime_type: str = ""

    def __post_init__(self) -> None:
        """Fill in the type."""
        if not isinstance(self.data, bytes | bytearray | memoryview):
            raise TypeError(f"data: bytes, not {type(self.data).__name__}; Image.from_file takes a path")
        object.__setattr__(self, "data", bytes(self.data))
        object.__setattr__(self, "mime_type", self.mime_type or _type_of(self.data))

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> "Image":
        """The image in a file, read now. Raises OSError."""
        return cls(Path(path).read_bytes())


def _type_of(data: bytes) -> str:
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime_type for beginning, mime_type in _BEGINNINGS if data.startswith(beginning)), _UNKNOWN)
