"""YAML is read strictly: nothing is silently overridden, nothing is unbounded."""

from pathlib import Path

import pytest

from inferd_server.config import ConfigError
from inferd_server.config.document import MAX_FILE_NBYTES, parse_document, read_document


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert parse_document(text) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"duplicate key 'a', first in line 1 \(line 3, column 1\)"),
        ("m:\n  - {x: 1, x: 2}", "duplicate key 'x'"),
        ("1: x", "the key '1' is not text"),
        ("yes: x", "the key 'yes' is not text"),
        ("? [a]\n: x", "the key here is not text"),
        ("a: [1", "not valid YAML"),
        ("a: 1\n\tb: 2", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("--- {a: 1}\n--- {b: 2}", "single document"),
        ("[1, 2]", "must be a mapping"),
        ("text", "must be a mapping"),
        ("a: *nowhere", "undefined alias"),
        ("a: " + "[" * 1000, "nested deeper than"),
        ("a: " + "{b: " * 1000, "nested deeper than"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: 2026-99-99", "not valid YAML"),
    ],
)
def test_what_is_not_one_clean_mapping_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_document(text)
    [problem] = caught.value.problems
    assert "\n" not in problem.message


def test_anchors_and_merge_keys_work() -> None:
    text = "base: &base {a: 1, b: 2}\none: {<<: *base, b: 3}\ntwo: {<<: *base}\nthree: *base"
    document = parse_document(text)
    assert document["one"] == {"a": 1, "b": 3}
    assert document["two"] == document["three"] == {"a": 1, "b": 2}


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_document(b"a: \xff\xfe\xfa")


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path / name)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    with file.open("wb") as stream:
        stream.truncate(MAX_FILE_NBYTES + 1)
    with pytest.raises(ConfigError, match="is larger than"):
        read_document(file)
