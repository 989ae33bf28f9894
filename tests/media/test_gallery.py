"""Every odd and hostile image becomes the right picture, or is refused by type and in words."""

import re

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.media import Blob, MediaKind, MediaLimits, Picture
from inferd_server.media.decoding import decode
from support.odd_images import Odd, gallery

GALLERY = gallery()


def blob(odd: Odd) -> Blob:
    return Blob(MediaKind.IMAGE, odd.mime_type, odd.data, "chat.messages[0].parts[0].image")


def quarter_colours(picture: Picture) -> list[tuple[int, ...]]:
    centres = [(x * picture.width // 4, y * picture.height // 4) for y in (1, 3) for x in (1, 3)]
    starts = [3 * (y * picture.width + x) for x, y in centres]
    return [tuple(picture.rgb[start : start + 3]) for start in starts]


@pytest.mark.parametrize("odd", [odd for odd in GALLERY if odd.size], ids=lambda odd: odd.name)
def test_a_sound_image_becomes_the_right_picture(odd):
    (picture,) = decode([blob(odd)], MediaLimits())
    assert (picture.width, picture.height) == odd.size
    assert len(picture.rgb) == 3 * picture.width * picture.height
    for found, expected in zip(quarter_colours(picture), odd.shows, strict=False):
        assert all(abs(a - b) <= odd.tolerance for a, b in zip(found, expected, strict=True)), (found, expected)


@pytest.mark.parametrize("odd", [odd for odd in GALLERY if not odd.size], ids=lambda odd: odd.name)
def test_a_hostile_image_is_refused_by_type_and_in_words(odd):
    with pytest.raises(InferdError) as caught:
        decode([blob(odd)], MediaLimits())
    assert caught.value.reason is Reason.INVALID_PARAMETER
    violations = caught.value.violations
    assert all(violation.field.startswith("chat.messages[0].parts[0].image.") for violation in violations)
    assert any(re.search(odd.refusal, violation.description) for violation in violations), violations


def test_the_gallery_is_large():
    assert len({odd.name for odd in GALLERY}) == len(GALLERY) >= 100
