"""A gallery of odd and hostile images, made here byte by byte, each with what has to become of it."""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

from PIL import Image, PngImagePlugin

RED, GREEN, BLUE, YELLOW = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)
WHITE, BLACK = (255, 255, 255), (0, 0, 0)
QUARTERS = (RED, GREEN, BLUE, YELLOW)
"""Top left, top right, bottom left, bottom right."""
WIDTH, HEIGHT = 32, 24

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Odd:
    """An image, and what has to become of it.

    Attributes:
        size: of the picture that it becomes; None: it is refused.
        shows: the colours of the picture's quarters, each within `tolerance`.
        refusal: what the refusal says.
    """

    name: str
    data: bytes = field(repr=False)
    mime_type: str
    size: tuple[int, int] | None = None
    shows: tuple[Colour, ...] = QUARTERS
    tolerance: int = 0
    refusal: str = ""


def quarters(colours: tuple[Colour, ...] = QUARTERS, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """A picture of four quarters."""
    image = Image.new("RGB", size)
    width, height = size[0] // 2, size[1] // 2
    for i, colour in enumerate(colours):
        image.paste(colour, (i % 2 * width, i // 2 * height, (i % 2 + 1) * width, (i // 2 + 1) * height))
    return image


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """The image as a file of that kind."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif_of(orientation: int) -> bytes:
    """EXIF data with that orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes, interlace: int = 0) -> bytes:
    """A PNG from its rows (each with its filter byte); `extra` chunks stand before the pixels."""
    ihdr = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    pixels = chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + b"".join(extra) + pixels + chunk(b"IEND", b"")


def huge_png(width: int, height: int) -> bytes:
    """A sound PNG of so many black pixels in few bytes: one bit each."""
    return png(width, height, 1, 0, bytes((width + 7) // 8 + 1) * height)


def lying_png(width: int, height: int) -> bytes:
    """A PNG whose header promises more pixels than it has."""
    return png(width, height, 8, 2, b"\0\0\0\0")


def bitmap_in_rows(image: Image.Image, nbytes: int) -> bytes:
    """The image's bytes with a filter byte before each row of `nbytes`."""
    flat = image.tobytes()
    return b"".join(b"\0" + flat[at : at + nbytes] for at in range(0, len(flat), nbytes))


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    """The JPEG with more segments at its beginning."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """A WebP of these chunks."""
    body = b"".join(kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp_canvas(width: int, height: int, flags: int = 0) -> tuple[bytes, bytes]:
    """The chunk that states a WebP's canvas."""
    return b"VP8X", bytes((flags, 0, 0, 0)) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]


def gallery() -> list[Odd]:
    """All of them."""
    return [odd for make in _MAKERS for odd in make()]


def _plain() -> Iterator[Odd]:
    still = quarters()
    size = still.size
    yield Odd("png", saved(still, "PNG"), "image/png", size)
    yield Odd("jpeg", saved(still, "JPEG", quality=95, subsampling=0), "image/jpeg", size, tolerance=12)
    yield Odd("webp lossless", saved(still, "WEBP", lossless=True), "image/webp", size)
    yield Odd("webp lossy", saved(still, "WEBP", quality=95), "image/webp", size, tolerance=24)
    yield Odd("gif", saved(still, "GIF"), "image/gif", size)
    yield Odd("progressive jpeg", saved(still, "JPEG", progressive=True), "image/jpeg", size, tolerance=40)
    yield Odd("interlaced gif", saved(still, "GIF", interlace=1), "image/gif", size)
    yield Odd("one pixel", saved(Image.new("RGB", (1, 1), RED), "PNG"), "image/png", (1, 1), (RED,) * 4)
    yield Odd("a strip", saved(Image.new("RGB", (1, 20_000), BLUE), "PNG"), "image/png", (1, 20_000), (BLUE,) * 4)
    yield Odd("another strip", saved(Image.new("L", (65_000, 1), 255), "JPEG"), "image/jpeg", (65_000, 1), (WHITE,) * 4)
    yield Odd("mime with a parameter", saved(still, "PNG"), "Image/PNG; charset=binary", size)
    yield Odd("mime that says nothing", saved(still, "PNG"), "application/octet-stream", size)


def _modes() -> Iterator[Odd]:
    still = quarters()
    size = still.size
    grey = still.convert("L")
    greys = tuple((level,) * 3 for level in (76, 149, 29, 225))
    yield Odd("grey png", saved(grey, "PNG"), "image/png", size, greys, tolerance=1)
    yield Odd("grey jpeg", saved(grey, "JPEG", quality=95), "image/jpeg", size, greys, tolerance=6)
    yield Odd("palette png", saved(still.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), "image/png", size)
    bits = quarters((WHITE, BLACK, BLACK, WHITE)).convert("1")
    yield Odd("one bit png", saved(bits, "PNG"), "image/png", size, (WHITE, BLACK, BLACK, WHITE))
    rows = (b"\0" + struct.pack(">H", 0x40FF) * 8) * 8
    yield Odd("16 bit grey png", png(8, 8, 16, 0, rows), "image/png", (8, 8), ((0x40,) * 3,) * 4)
    rows = (b"\0" + struct.pack(">HHH", 0xFFFF, 0x8000, 0x00FF) * 8) * 8
    yield Odd("16 bit rgb png", png(8, 8, 16, 2, rows), "image/png", (8, 8), ((255, 128, 0),) * 4)
    rows = (b"\0" + struct.pack(">HHHH", 0xFFFF, 0, 0, 0) * 8) * 8
    yield Odd("16 bit rgba png, all transparent", png(8, 8, 16, 6, rows), "image/png", (8, 8), (WHITE,) * 4)
    rows = (b"\0" + struct.pack(">HH", 0, 0xFFFF) * 8) * 8
    yield Odd("16 bit grey and alpha png", png(8, 8, 16, 4, rows), "image/png", (8, 8), (BLACK,) * 4)
    rows = (b"\0" + bytes((0b00011011,)) * 2) * 8
    yield Odd("2 bit grey png", png(8, 8, 2, 0, rows), "image/png", (8, 8), ((170,) * 3,) * 4)
    cmyk = still.convert("CMYK")
    yield Odd(
        "cmyk jpeg (inverted, as Adobe has it)", saved(cmyk, "JPEG", quality=95), "image/jpeg", size, tolerance=12
    )
    rgb = saved(still, "JPEG", quality=95, subsampling=0, keep_rgb=True)
    yield Odd("jpeg of rgb components", rgb, "image/jpeg", size, tolerance=12)


def _transparency() -> Iterator[Odd]:
    still = quarters()
    size = still.size
    veiled = still.copy()
    veiled.putalpha(Image.linear_gradient("L").resize(size).point(lambda level: 0 if level < 128 else 255))
    yield Odd("alpha png", saved(veiled, "PNG"), "image/png", size, (WHITE, WHITE, BLUE, YELLOW))
    yield Odd("alpha webp", saved(veiled, "WEBP", lossless=True), "image/webp", size, (WHITE, WHITE, BLUE, YELLOW))
    half = still.copy()
    half.putalpha(128)
    shown = ((255, 127, 127), (127, 255, 127), (127, 127, 255), (255, 255, 127))
    yield Odd("half alpha png", saved(half, "PNG"), "image/png", size, shown, tolerance=1)
    grey = Image.new("LA", size, (0, 0))
    yield Odd("grey and alpha png", saved(grey, "PNG"), "image/png", size, (WHITE,) * 4)
    keyed = saved(still, "PNG", transparency=RED)
    yield Odd("png with a transparent colour", keyed, "image/png", size, (WHITE, GREEN, BLUE, YELLOW))
    rows = (b"\0" + bytes((0b01000000, 0))) * 8
    key = chunk(b"tRNS", struct.pack(">H", 1))
    yield Odd("2 bit grey png with a transparent level", png(8, 8, 2, 0, rows, key), "image/png", (8, 8), (BLACK,) * 4)
    rows = (b"\0" + bytes((0b01010101,) * 2)) * 8
    yield Odd("2 bit grey png, all transparent", png(8, 8, 2, 0, rows, key), "image/png", (8, 8), (WHITE,) * 4)
    key = chunk(b"tRNS", struct.pack(">H", 4))
    yield Odd("2 bit grey png with a level too high", png(8, 8, 2, 0, rows, key), "image/png", (8, 8), ((85,) * 3,) * 4)
    rows = (b"\0" + bytes(16)) * 8
    key = chunk(b"tRNS", struct.pack(">H", 0))
    yield Odd("16 bit grey png with a key", png(8, 8, 16, 0, rows, key), "image/png", refusal="16 bits .* transparent")
    palette = still.convert("P", palette=Image.Palette.ADAPTIVE)
    clear = palette.getpixel((0, 0))
    shown = (WHITE, GREEN, BLUE, YELLOW)
    yield Odd("palette png, one entry clear", saved(palette, "PNG", transparency=clear), "image/png", size, shown)
    alphas = bytes(0 if i == clear else 255 for i in range(4))
    yield Odd("palette png with alphas", saved(palette, "PNG", transparency=alphas), "image/png", size, shown)
    yield Odd("gif, one entry clear", saved(palette, "GIF", transparency=clear), "image/gif", size, shown)
    small = saved(Image.new("P", (4, 4), 0), "GIF")
    wide = small[:6] + struct.pack("<HH", 8, 8) + small[10:]
    yield Odd("gif whose frame is a corner", wide, "image/gif", (8, 8), (BLACK, WHITE, WHITE, WHITE))


def _orientation() -> Iterator[Odd]:
    still = quarters()
    turned = {
        1: QUARTERS,
        2: (GREEN, RED, YELLOW, BLUE),
        3: (YELLOW, BLUE, GREEN, RED),
        4: (BLUE, YELLOW, RED, GREEN),
        5: (RED, BLUE, GREEN, YELLOW),
        6: (BLUE, RED, YELLOW, GREEN),
        7: (YELLOW, GREEN, BLUE, RED),
        8: (GREEN, YELLOW, RED, BLUE),
    }
    for orientation, shows in turned.items():
        size = (WIDTH, HEIGHT) if orientation < 5 else (HEIGHT, WIDTH)
        exif = exif_of(orientation)
        jpeg = saved(still, "JPEG", quality=95, subsampling=0, exif=exif)
        yield Odd(f"jpeg of orientation {orientation}", jpeg, "image/jpeg", size, shows, tolerance=12)
    yield Odd("png of orientation 6", saved(still, "PNG", exif=exif_of(6)), "image/png", (HEIGHT, WIDTH), turned[6])
    webp = saved(still, "WEBP", lossless=True, exif=exif_of(8))
    yield Odd("webp of orientation 8", webp, "image/webp", (HEIGHT, WIDTH), turned[8])
    wild = segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + struct.pack(">HHIHH", 0x112, 3, 1, 77, 0))
    jpeg = saved(still, "JPEG", quality=95, subsampling=0)
    yield Odd("jpeg of orientation 77", with_segments(jpeg, wild), "image/jpeg", still.size, tolerance=12)
    loop = segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff")
    yield Odd("jpeg with exif that leads nowhere", with_segments(jpeg, loop), "image/jpeg", still.size, tolerance=12)
    entries = b"".join(struct.pack(">HHII", i, 1, 50_000, 8) for i in range(4000))
    greedy = segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 4000) + entries + bytes(10_000))
    yield Odd("jpeg with exif that copies itself", with_segments(jpeg, greedy), "image/jpeg", still.size, tolerance=12)


def _metadata() -> Iterator[Odd]:
    still = quarters()
    size = still.size
    info = PngImagePlugin.PngInfo()
    info.add_text("bomb", "A" * 2**25, zip=True)
    yield Odd("png with a text bomb", saved(still, "PNG", pnginfo=info), "image/png", size)
    bomb = zlib.compress(bytes(2**25), 9)
    plain = saved(still, "PNG")
    with_profile = plain[:33] + chunk(b"iCCP", b"x\0\0" + bomb) + plain[33:]
    yield Odd("png with a profile bomb", with_profile, "image/png", size)
    many = plain[:33] + chunk(b"teSt", b"") * 50_000 + plain[33:]
    yield Odd("png with 50,000 chunks", many, "image/png", size)
    more = plain[:33] + chunk(b"teSt", b"") * 70_000 + plain[33:]
    yield Odd("png with 70,000 chunks", more, "image/png", refusal="more than 65536 chunks")
    jpeg = saved(still, "JPEG", quality=95, subsampling=0)
    profiles = [segment(0xE2, b"ICC_PROFILE\0" + bytes((i + 1, 60)) + bytes(65_000)) for i in range(60)]
    yield Odd("jpeg with a profile of 4 MB", with_segments(jpeg, *profiles), "image/jpeg", size, tolerance=12)
    comments = [segment(0xFE, b"")] * 5000
    yield Odd("jpeg of 5,000 comments", with_segments(jpeg, *comments), "image/jpeg", refusal="more than 4096 segments")
    yield Odd(
        "mpo",
        saved(still, "MPO", save_all=True, append_images=[still], quality=95, subsampling=0),
        "image/jpeg",
        size,
        tolerance=12,
    )
    broken = segment(0xE2, b"MPF\0MM\0*\0\0\0\x08\xff\xff" + bytes(20))
    yield Odd("jpeg that claims to be an mpo", with_segments(jpeg, broken), "image/jpeg", size, tolerance=12)
    yield Odd("jpeg with bytes behind its end", jpeg + b"trailing" * 100, "image/jpeg", size, tolerance=12)
    yield Odd("png with bytes behind its end", plain + b"trailing" * 100, "image/png", size)


def _animations() -> Iterator[Odd]:
    still, other = quarters(), quarters((BLUE,) * 4)
    for kind in ("GIF", "WEBP", "PNG"):
        moving = saved(still, kind, save_all=True, append_images=[other], duration=100)
        yield Odd(f"animated {kind.lower()}", moving, f"image/{kind.lower()}", refusal="an animation")


def _bombs() -> Iterator[Odd]:
    yield Odd("png bomb", huge_png(20_000, 20_000), "image/png", refusal="20000x20000, which are 400000000 pixels")
    yield Odd("png that lies", lying_png(60_000, 60_000), "image/png", refusal="3600000000 pixels")
    yield Odd("png of the largest size", lying_png(2**31 - 1, 2**31 - 1), "image/png", refusal="at most 16777216")
    yield Odd("png with a very long side", huge_png(1, 70_000), "image/png", refusal="1x70000 .* at most 65535")
    yield Odd("webp bomb", riff(webp_canvas(2**24, 2**24), (b"VP8L", b"\x2f\0\0\0\0")), "image/webp", refusal="pixels")
    jpeg = saved(quarters(), "JPEG")
    at = jpeg.index(b"\xff\xc0") + 5
    vast = jpeg[:at] + b"\xff\xff\xff\xff" + jpeg[at + 4 :]
    yield Odd("jpeg bomb", vast, "image/jpeg", refusal="65535x65535")
    gif = saved(quarters(), "GIF")
    yield Odd("gif bomb", gif[:6] + b"\xff\xff\xff\xff" + gif[10:], "image/gif", refusal="65535x65535")
    long = saved(quarters(), "JPEG", progressive=True)
    scan = long.index(b"\xff\xda")
    again = long[:-2] + long[scan:-2] * 20 + long[-2:]
    yield Odd("jpeg of hundreds of scans", again, "image/jpeg", refusal="scans; at most 64")


def _strange_parts() -> Iterator[Odd]:
    """Parts that are too many, too long, or not where they belong."""
    still = quarters()
    gif = saved(still, "GIF")
    webp = saved(still, "WEBP", lossless=True)
    rows = b"\0" * 72
    palette = chunk(b"PLTE", bytes(3))
    yield Odd(
        "png with two palettes", png(8, 8, 8, 3, rows, palette, palette), "image/png", refusal="two chunks 'PLTE'"
    )
    vast = png(8, 8, 8, 3, rows, chunk(b"PLTE", bytes(3000)))
    yield Odd("png with a vast palette", vast, "image/png", refusal="'PLTE' of 3000 bytes")
    key = chunk(b"tRNS", bytes(4))
    yield Odd("png with a strange key", png(8, 8, 8, 0, rows, key), "image/png", refusal="tRNS of 4 bytes")
    many = riff((b"VP8L", webp[20:]), *[(b"test", b"")] * 5000)
    yield Odd("webp of 5,000 chunks", many, "image/webp", refusal="more than 4096 chunks")
    long = riff((b"VP8L", webp[20:]))
    long = long[:16] + struct.pack("<I", len(long)) + long[20:]
    yield Odd("webp with a chunk beyond its end", long, "image/webp", refusal="is cut off")
    body = gif.index(b",")
    blocks = gif[:body] + b"!\xfe" + b"\x01a" * 300_000 + b"\0" + gif[body:]
    yield Odd("gif of 300,000 blocks", blocks, "image/gif", refusal="more than 262144 blocks")
    small = gif[:6] + struct.pack("<HH", 4, 4) + gif[10:]
    yield Odd("gif whose frame is larger than its canvas", small, "image/gif", still.size)
    thin = gif[: body + 5] + struct.pack("<HH", 0, 24) + gif[body + 9 :]
    yield Odd("gif whose frame has no width", thin, "image/gif", refusal="a frame without pixels")
    jpeg = saved(still, "JPEG", quality=95, subsampling=0)
    for name, kind, count in (("a long", 4, 1), ("two", 3, 2)):
        wild = segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHH", 0x112, kind, count, 6, 0))
        turned = with_segments(jpeg, wild)
        yield Odd(f"jpeg whose orientation is {name}", turned, "image/jpeg", still.size, tolerance=12)


def _damage() -> Iterator[Odd]:
    still = quarters()
    plain, jpeg = saved(still, "PNG"), saved(still, "JPEG", quality=95, subsampling=0)
    webp, gif = saved(still, "WEBP", lossless=True), saved(still, "GIF")
    for name, data in (("png", plain), ("jpeg", jpeg), ("webp", webp), ("gif", gif)):
        yield Odd(f"half a {name}", data[: len(data) // 2], f"image/{name}", refusal="is cut off")
        yield Odd(f"{name}, the last byte lost", data[:-1], f"image/{name}", refusal="is cut off|more than|no pixels")
        yield Odd(f"only the beginning of a {name}", data[:16], f"image/{name}", refusal="is cut off|header")
    flipped = bytearray(plain)
    flipped[plain.index(b"IDAT") + 8] ^= 0xFF
    yield Odd("png with a wrong checksum", bytes(flipped), "image/png", refusal="'IDAT' with a wrong checksum")
    yield Odd(
        "png of noise",
        png(8, 8, 8, 2, b"\0")[:33] + chunk(b"IDAT", b"noise" * 9) + chunk(b"IEND", b""),
        "image/png",
        refusal="can't be decoded",
    )
    yield Odd("png with too few rows", png(64, 64, 8, 2, b"\0" * 50), "image/png", refusal="can't be decoded")
    yield Odd("png without pixels", plain[:33] + chunk(b"IEND", b""), "image/png", refusal="holds no pixels")
    yield Odd("png of no width", png(0, 5, 8, 2, b""), "image/png", refusal="0x5 pixels")
    strange = png(8, 8, 3, 0, b"\0" * 100)
    yield Odd("png with a strange depth", strange, "image/png", refusal="3 bits a channel")
    strange = png(8, 8, 0, 0, b"\0" * 100, chunk(b"tRNS", b"\0\0"))
    yield Odd("png of no depth and a key", strange, "image/png", refusal="0 bits a channel")
    strange = png(8, 8, 2, 3, b"\0" * 100, chunk(b"PLTE", bytes(3)), interlace=7)
    yield Odd("palette png, interlaced in a strange way", strange, "image/png", (8, 8), (BLACK,) * 4)
    yield Odd("palette png without a palette", png(8, 8, 8, 3, b"\0" * 72), "image/png", refusal="no palette")
    yield Odd(
        "png with two headers", plain[:33] + plain[8:33] + plain[33:], "image/png", refusal="begin with its header"
    )
    crushed = plain[:33] + chunk(b"CgBI", b"") + plain[33:]
    yield Odd("png for phones", crushed, "image/png", refusal="'CgBI', which is needed and unknown")
    frame = jpeg.index(b"\xff\xc0")
    header = jpeg[frame : frame + 19]
    yield Odd("jpeg with two headers", jpeg[:frame] + header + jpeg[frame:], "image/jpeg", refusal="two headers")
    yield Odd(
        "jpeg of 12 bits", jpeg.replace(header, header[:4] + b"\x0c" + header[5:]), "image/jpeg", refusal="12 bits"
    )
    yield Odd("jpeg without scans", jpeg[: jpeg.index(b"\xff\xda")] + b"\xff\xd9", "image/jpeg", refusal="no pixels")
    yield Odd(
        "jpeg of no height",
        jpeg.replace(header, header[:5] + b"\0\0" + header[7:]),
        "image/jpeg",
        refusal="32x0 pixels",
    )
    yield Odd("webp of nothing", riff(), "image/webp", refusal="holds no pixels")
    yield Odd(
        "webp of noise", riff((b"VP8L", b"\x2f\x07\xc0\x01\0" + b"noise" * 9)), "image/webp", refusal="can't be decoded"
    )
    yield Odd("gif without a frame", gif[:13] + b";", "image/gif", refusal="is cut off|no pixels|no block")
    yield Odd("nothing but a signature", b"\x89PNG\r\n\x1a\n", "image/png", refusal="is cut off")


def _disguises() -> Iterator[Odd]:
    plain = saved(quarters(), "PNG")
    yield Odd("png that says jpeg", plain, "image/jpeg", refusal="'image/jpeg', but the bytes are PNG")
    yield Odd("png that says video", plain, "video/mp4", refusal="'video/mp4', but the bytes are PNG")
    svg = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield Odd("svg", svg, "image/svg+xml", refusal="is text or markup; PNG, JPEG, WebP and GIF")
    yield Odd("html as png", b"<html><img src='http://127.0.0.1/'></html>", "image/png", refusal="text or markup")
    yield Odd("pdf as png", b"%PDF-1.7\n" + bytes(99), "image/png", refusal="is a PDF")
    yield Odd("zip as png", b"PK\x03\x04" + bytes(99), "image/png", refusal="is a ZIP")
    yield Odd("video as png", b"\0\0\0\x20ftypisom" + bytes(99), "image/png", refusal="is a video")
    yield Odd("heic", b"\0\0\0\x20ftypheic" + bytes(99), "image/heic", refusal="is a HEIC")
    yield Odd("bmp", saved(quarters(), "BMP"), "image/bmp", refusal="is a BMP")
    yield Odd("tiff", saved(quarters(), "TIFF"), "image/tiff", refusal="is a TIFF")
    yield Odd("postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n", "image/png", refusal="is no image")
    yield Odd("a path", b"/etc/passwd", "image/png", refusal="is no image")
    yield Odd("a url", b"http://127.0.0.1:1/a.png", "image/png", refusal="is no image")
    yield Odd("one byte", b"\0", "image/png", refusal="is no image")


_MAKERS: tuple[Callable[[], Iterator[Odd]], ...] = (
    _plain,
    _modes,
    _transparency,
    _orientation,
    _metadata,
    _animations,
    _bombs,
    _strange_parts,
    _damage,
    _disguises,
)
