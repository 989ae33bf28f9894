"""Judged before decoded: limits of a request's images, all violations at once, nothing opened, nothing leaked."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from inferd_server.core.errors import FieldViolation, InferdError
from inferd_server.core.media import MAX_PIXELS, Blob, MediaKind, MediaLimits
from inferd_server.media import pixels
from inferd_server.media.decoding import decode
from support.odd_images import RED, WHITE, huge_png, quarters, saved

LIMITS = MediaLimits(max_images=3, max_image_nbytes=2**20, max_image_pixels=1000, max_request_pixels=1500)
PNG = saved(quarters(), "PNG")  # 768 pixels


def shown(*files: bytes, mime_type: str = "image/png") -> list[Blob]:
    return [Blob(MediaKind.IMAGE, mime_type, data, f"image[{i}]") for i, data in enumerate(files)]


def refusal(blobs: Sequence[Blob], limits: MediaLimits = LIMITS) -> tuple[FieldViolation, ...]:
    with pytest.raises(InferdError) as caught:
        decode(blobs, limits)
    return caught.value.violations


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was given to Pillow."""
    seen: list[object] = []
    readers = {kind: lambda file, kind=kind: seen.append(kind) for kind in pixels.READERS}
    monkeypatch.setattr(pixels, "READERS", readers)
    return seen


def test_images_that_are_too_many_pixels_together_are_refused_before_one_is_decoded(decoded: list[object]) -> None:
    (violation,) = refusal(shown(PNG, PNG))
    assert (violation.field, violation.description) == (
        "chat.messages",
        "its images have 1536 pixels in all; at most 1500 are allowed",
    )
    assert decoded == []


def test_a_budget_bomb_of_few_bytes_is_refused_before_one_is_decoded(decoded: list[object]) -> None:
    bomb = huge_png(4000, 4000)
    assert len(bomb) < 10_000
    assert [violation.field for violation in refusal(shown(*[bomb] * 3), MediaLimits())] == ["chat.messages"]
    assert decoded == []


def test_a_bomb_of_many_bytes_is_refused_before_one_is_decoded(decoded: list[object]) -> None:
    large = huge_png(4000, 4000) + bytes(12 * 2**20)
    blobs = shown(*[large] * 16)
    assert sum(len(blob.data) for blob in blobs) > 200_000_000
    assert refusal(blobs, MediaLimits())
    assert decoded == []


def test_everything_that_headers_show_is_told_at_once(decoded: list[object]) -> None:
    blobs = [*shown(b"no image", huge_png(40, 30)), replace(shown(PNG)[0], mime_type="image/gif", field="image[2]")]
    assert [violation.field for violation in refusal(blobs)] == ["image[0].data", "image[1].data", "image[2].mime_type"]
    assert decoded == []


def test_too_many_images_and_too_many_bytes_are_refused(decoded: list[object]) -> None:
    dot = saved(Image.new("L", (1, 1)), "PNG")
    assert [violation.description for violation in refusal(shown(dot, dot, dot, dot))] == [
        "holds 4 images; at most 3 are allowed"
    ]
    assert [violation.field for violation in refusal(shown(PNG + bytes(2**20)))] == ["image[0].data"]
    assert decoded == []


def test_an_image_that_nobody_wants_any_more_is_not_decoded() -> None:
    answers = iter((True, False))
    assert len(decode(shown(PNG, PNG), MediaLimits(), lambda: next(answers))) == 1


def test_a_picture_is_known_by_its_size_and_its_pixels() -> None:
    small, wide, tall = (saved(Image.new("RGB", size, RED), "PNG") for size in ((2, 2), (4, 1), (1, 4)))
    pictures = decode(shown(small, wide, tall), MediaLimits())
    assert len({picture.digest for picture in pictures}) == 3
    assert pictures[0].digest == sha256(b"2x2:" + bytes(RED) * 4).hexdigest()
    again = saved(Image.new("RGB", (2, 2), RED), "WEBP", lossless=True)
    assert decode(shown(again, mime_type="image/webp"), MediaLimits()) == pictures[:1]


def test_no_image_is_a_picture_of_nothing() -> None:
    assert decode([], LIMITS) == ()


def test_narrowed_limits_are_the_lower_of_both() -> None:
    other = MediaLimits(max_images=9, max_image_nbytes=1, max_image_pixels=2000, max_request_pixels=1)
    assert LIMITS.narrowed(other) == MediaLimits(3, 1, 1000, 1)


def test_pillow_is_told_its_limits() -> None:
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (MAX_PIXELS, False)


def test_no_file_is_opened_and_no_other_format_is_looked_for() -> None:
    """Seen from inside: the interpreter's own audit of files, sockets and processes, while the gallery is decoded."""
    program = """
import sys
from inferd_server.core.errors import InferdError
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.media.decoding import decode
from support.odd_images import gallery, quarters, saved
images = gallery()
decode([Blob(MediaKind.IMAGE, "image/png", saved(quarters(), kind), "") for kind in ("PNG",)], MediaLimits())
from PIL import ImageChops, ImageColor, ImagePalette, ImageSequence  # what Pillow imports at its first use
before = set(sys.modules)
opened = []
sys.addaudithook(lambda event, args: event.split(".")[0] in {"open", "socket", "subprocess", "os", "urllib"}
                 and opened.append((event, args)))
for odd in images:
    try:
        decode([Blob(MediaKind.IMAGE, odd.mime_type, odd.data, "")], MediaLimits())
    except InferdError:
        pass
print([(event, args) for event, args in opened if ".py" not in str(args) and ".so" not in str(args)])
print(sorted(name for name in set(sys.modules) - before if name.endswith("ImagePlugin")))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="tests", check=True)
    assert found.stdout.splitlines() == ["[]", "[]"]


def test_what_one_request_takes_is_bounded(tmp_path: Path) -> None:
    """The process's own high-water mark: 23 bytes for each pixel of the largest image, beside its file and a copy."""
    side = 3000
    image = Image.linear_gradient("L").resize((side, side)).convert("RGBA")
    (tmp_path / "a.png").write_bytes(saved(image, "PNG", compress_level=1))
    (tmp_path / "b.webp").write_bytes(saved(image, "WEBP", method=0))
    (tmp_path / "c.jpeg").write_bytes(saved(image.convert("CMYK"), "JPEG", progressive=True))
    program = """
import resource, sys
from pathlib import Path
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.media.decoding import decode
def peak_nbytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak_nbytes()
for file in sorted(Path(sys.argv[1]).iterdir()):
    decode([Blob(MediaKind.IMAGE, "image/" + file.suffix[1:], file.read_bytes(), "")], MediaLimits())
print(peak_nbytes() - before)
"""
    # Through a shell: a child's mark begins at that of the process that started it.
    command = ["sh", "-c", '"$0" -c "$1" "$2"; exit $?', sys.executable, program, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 10 < int(found.stdout) / side**2 <= 24


def test_what_is_transparent_is_white_even_where_a_decoder_left_another_colour() -> None:
    image = Image.new("RGBA", (8, 8), (*RED, 0))
    for kind in ("PNG", "WEBP"):
        data = saved(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
        (picture,) = decode(shown(data, mime_type=f"image/{kind.lower()}"), MediaLimits())
        assert picture.rgb == bytes(WHITE) * 64
