"""What bytes are, told by themselves; the stated MIME type may only agree."""

from . import gif, jpeg, png, webp
from .header import Format

FORMATS = {
    "image/png": Format.PNG,
    "image/x-png": Format.PNG,
    "image/apng": Format.PNG,
    "image/jpeg": Format.JPEG,
    "image/jpg": Format.JPEG,
    "image/pjpeg": Format.JPEG,
    "image/webp": Format.WEBP,
    "image/gif": Format.GIF,
}
UNKNOWN = "application/octet-stream"
"""States nothing."""
READ = "PNG, JPEG, WebP and GIF are read"

# Others that people send, to be refused by name.
_OTHERS = (
    (0, b"BM", "a BMP"),
    (0, b"II*\0", "a TIFF"),
    (0, b"MM\0*", "a TIFF"),
    (4, b"ftypavif", "an AVIF"),
    (4, b"ftyphei", "a HEIC"),
    (4, b"ftypmif1", "a HEIC"),
    (4, b"ftyp", "a video"),
    (0, b"\x1a\x45\xdf\xa3", "a video"),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000"),
    (0, b"\0\0\x01\0", "an icon"),
    (0, b"%PDF-", "a PDF"),
    (0, b"PK\x03\x04", "a ZIP"),
)


def sniff(data: bytes) -> Format | None:
    """The format that the first bytes belong to; None: none that is read."""
    if data.startswith(png.SIGNATURE):
        return Format.PNG
    if data.startswith(jpeg.SIGNATURE):
        return Format.JPEG
    if data.startswith(gif.SIGNATURES):
        return Format.GIF
    return Format.WEBP if webp.is_webp(data) else None


def describe(data: bytes) -> str:
    """What bytes of no format that is read seem to be, in words."""
    for at, prefix, name in _OTHERS:
        if data.startswith(prefix, at):
            return name
    return "text or markup" if data[:256].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else "no image"


def contradicts(mime_type: str, found: Format) -> bool:
    """Whether a stated MIME type is another format's, or no image's. Parameters and case don't count."""
    stated = mime_type.partition(";")[0].strip().lower()
    return stated != UNKNOWN and FORMATS.get(stated) is not found
