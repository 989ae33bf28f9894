"""Whatever bytes come: a picture, or a typed refusal; nothing else gets out, and no warning."""

from hypothesis import given, settings
from hypothesis import strategies as st

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.media.decoding import decode
from support.odd_images import gallery

LIMITS = MediaLimits(max_image_pixels=100_000, max_request_pixels=150_000)
SEEDS = [odd.data for odd in gallery() if len(odd.data) < 20_000]

cuts = st.tuples(st.floats(0, 1), st.binary(max_size=8), st.integers(0, 8))
"""(where, what is put there, how many bytes it replaces)."""


def mutated(data: bytes, changes: list[tuple[float, bytes, int]]) -> bytes:
    """The bytes after some cuts, which fall into the first hundred bytes as often as into the rest."""
    for place, put, taken in changes:
        at = int(place * 2 * 100) if place < 0.5 else int((place - 0.5) * 2 * len(data))
        data = data[:at] + put + data[at + taken :]
    return data


def outcome(*files: bytes) -> None:
    """Decodes; anything but pictures and typed refusals gets out."""
    blobs = [Blob(MediaKind.IMAGE, "application/octet-stream", data, f"image[{i}]") for i, data in enumerate(files)]
    try:
        pictures = decode(blobs, LIMITS)
    except InferdError as refused:
        refusal = refused
    else:
        assert all(len(picture.rgb) == 3 * picture.width * picture.height for picture in pictures)
        assert sum(picture.width * picture.height for picture in pictures) <= LIMITS.max_request_pixels
        return
    assert refusal.reason is Reason.INVALID_PARAMETER
    assert refusal.violations


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(cuts, min_size=1, max_size=4))
def test_a_mutated_image_becomes_a_picture_or_is_refused(data: bytes, changes: list[tuple[float, bytes, int]]) -> None:
    outcome(mutated(data, changes))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SEEDS), st.sampled_from(SEEDS), st.floats(0, 1), st.floats(0, 1))
def test_two_images_grown_together_become_a_picture_or_are_refused(
    first: bytes, second: bytes, end: float, start: float
) -> None:
    outcome(first[: int(end * len(first))] + second[int(start * len(second)) :], second)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\x40\0\0\0WEBP", b"GIF89a", b""]), st.binary())
def test_noise_behind_a_signature_is_refused(signature: bytes, noise: bytes) -> None:
    outcome(signature + noise)
