"""Reading a YAML file strictly: duplicate keys, keys that are not text and several documents are refused."""

from pathlib import Path
from typing import Any

import yaml

from inferd_server.core.errors import echo

from .problems import ConfigError, Problem

MAX_FILE_NBYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
MERGE_TAG = "tag:yaml.org,2002:merge"
Document = dict[str, Any]


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses what it would let the last one win, and nesting that would exhaust the stack."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = parent.start_mark if parent else None
            raise yaml.constructor.ConstructorError(None, None, f"nested deeper than {MAX_DEPTH}", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _strict_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[str, Any]:
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == MERGE_TAG:
            continue
        if key.tag != "tag:yaml.org,2002:str":
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {_shown(key)} is not text; put it in quotes", key.start_mark
            )
        line = key.start_mark.line + 1
        if key.value in first_lines:
            message = f"duplicate key {key.value!r}, first in line {first_lines[key.value]}"
            raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        first_lines[key.value] = line
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


def _shown(key: yaml.Node) -> str:
    return repr(echo(key.value)) if isinstance(key, yaml.ScalarNode) else "here"


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _strict_mapping)


def read_document(path: Path) -> Document:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: the file cannot be read, or is not one YAML mapping with unique text keys.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_NBYTES + 1)
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror or error}")]) from None
    if len(content) > MAX_FILE_NBYTES:
        raise ConfigError([Problem("", f"is larger than {MAX_FILE_NBYTES} bytes")])
    return parse_document(content)


def parse_document(content: bytes | str) -> Document:
    """The mapping in YAML text. Raises ConfigError as `read_document` does."""
    try:
        # _StrictLoader is a SafeLoader: it builds plain data only.
        document = yaml.load(content, Loader=_StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError([Problem("", f"is not valid YAML: {_one_line(error)}")]) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError([Problem("", "must be a mapping")])
    return document


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    text = ": ".join(part for part in parts if part) or str(error)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return " ".join(text.split()) + where
