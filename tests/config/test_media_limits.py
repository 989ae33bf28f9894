"""What the images of a request may amount to: the server's limits, and those that a key narrows them to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd_server.config import Config, ConfigError
from inferd_server.config.keys import read_keys
from inferd_server.core.media import MediaLimits

Valid = Callable[..., Config]
HASH = "sha256:" + "0" * 64


def keys_file(folder: Path, **fields: Any) -> Path:
    file = folder / "keys.yaml"
    stated = "".join(f"\n    {name}: {value}" for name, value in fields.items())
    file.write_text(f"keys:\n  - id: a\n    hash: {HASH}{stated}\n")
    return file


def test_the_servers_limits_are_those_of_the_file_or_the_defaults(valid: Valid) -> None:
    assert valid().server.media_limits == MediaLimits()
    server = {"max_images": 0, "max_image_mib": 1, "max_image_pixels": 2, "max_request_pixels": 3}
    assert valid(server=server).server.media_limits == MediaLimits(0, 2**20, 2, 3)
    assert valid(flags={"server.max_images": "3"}).server.media_limits.max_images == 3


@pytest.mark.parametrize(
    ("key", "value"), [("max_images", -1), ("max_image_mib", 0), ("max_image_pixels", 0), ("max_request_pixels", 2**28)]
)
def test_limits_out_of_range_are_refused(
    key: str, value: int, problems_of: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    assert list(problems_of(server={key: value})) == [f"server.{key}"]
    with pytest.raises(ConfigError) as caught:
        read_keys(keys_file(tmp_path, **{key: value}), frozenset())
    assert [problem.path for problem in caught.value.problems] == [f"keys[0].{key}"]


def test_a_key_narrows_the_servers_limits_and_widens_none(tmp_path: Path) -> None:
    (key,) = read_keys(keys_file(tmp_path, max_images=1, max_image_mib=2000), frozenset())
    assert MediaLimits().narrowed(key.access.media_limits) == MediaLimits(max_images=1)
    (key,) = read_keys(keys_file(tmp_path, max_image_pixels=5, max_request_pixels=6), frozenset())
    assert MediaLimits().narrowed(key.access.media_limits) == MediaLimits(max_image_pixels=5, max_request_pixels=6)
