"""`inferd config init`: a commented file with every key at its default, made from the schema so that it is true."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from .problems import allowed_text, hints, nested_section
from .schema import (
    SECTIONS,
    Later,
    ModelSection,
    Section,
)
from .settings import SETTINGS

_PLACEHOLDERS: dict[str, object] = {"memory_budget_gb": 16, "name": "example", "path": "/models/example"}
_COMMENT_COLUMN = 48


def default_file() -> str:
    """The text of the file: valid YAML; valid configuration once `path` names a model's folder."""
    lines = [
        "# inferd's configuration: every key at its default.",
        "# Keys of all other sections than manager and models also have a flag (--drain-timeout-s, --tls-key) and a",
        "# variable (INFERD_DRAIN_TIMEOUT_S, ...), those of server.defaults as --default-... and INFERD_DEFAULT_...;",
        "# flag > variable > file > default.",
        "# `inferd check FILE` says whether a file is valid and what fits in memory.",
    ]
    for name, section in SECTIONS.items():
        keys = _as_list_item(list(_keys(section, 2))) if section is ModelSection else list(_keys(section, 1))
        lines += ["", f"{name}:", *keys]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Every key as a Markdown table: name, default, what is allowed, meaning, flag and variable."""
    flags = {setting.path: f"`{setting.flag}` `{setting.variable}`" for setting in SETTINGS}
    rows = ["| key | default | allowed | meaning | outside the file |", "| --- | --- | --- | --- | --- |"]
    for name, section in SECTIONS.items():
        prefix = "models[]" if section is ModelSection else name
        rows += [_row(*row, flags) for row in _walk(section, prefix)]
    return "\n".join(rows) + "\n"


def _walk(section: type[Section], prefix: str) -> Iterator[tuple[str, str, Any, Any]]:
    for key, annotation in hints(section).items():
        nested = nested_section(annotation)
        if nested is not None:
            yield from _walk(nested, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", key, annotation, section.model_fields[key]


def _row(path: str, key: str, annotation: Any, field: Any, flags: dict[str, str]) -> str:
    default = "required" if field.is_required() else f"`{yaml_scalar(field.get_default(call_default_factory=True))}`"
    later = "".join(f" ({mark.reason})" for mark in field.metadata if isinstance(mark, Later))
    allowed = allowed_text(annotation).replace("|", "\\|")
    return f"| `{path}` | {default} | {allowed} | {field.description}{later} | {flags.get(path, '')} |"


def _keys(section: type[Section], depth: int) -> Iterator[str]:
    indent = "  " * depth
    later = []
    for key, annotation in hints(section).items():
        field = section.model_fields[key]
        nested = nested_section(annotation)
        if nested is not None:
            yield f"{indent}{key}:".ljust(_COMMENT_COLUMN) + f" # {field.description}"
            yield from _keys(nested, depth + 1)
            continue
        default = _PLACEHOLDERS[key] if key in _PLACEHOLDERS else field.get_default(call_default_factory=True)
        line = f"{indent}{key}: {yaml_scalar(default)}".ljust(_COMMENT_COLUMN) + f" # {field.description}"
        if any(isinstance(mark, Later) for mark in field.metadata):
            later.append(line)
        else:
            yield line
    if later:
        yield f"{indent}# Not built yet: only these values are accepted."
        yield from later


def _as_list_item(lines: list[str]) -> list[str]:
    return [f"  - {lines[0].lstrip()}", *lines[1:]]


def yaml_scalar(value: object) -> str:
    """A default as YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(yaml_scalar(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and value.isdecimal():  # else YAML would read a number
        return f'"{value}"'
    return value.value if isinstance(value, StrEnum) else str(value)
