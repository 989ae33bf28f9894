"""What is wrong with a configuration: all of it at once, each with its path and what is allowed."""

import difflib
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from inferd_server.core.errors import echo

from .schema import Allowed, Section

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (`models[2].estimated_memory_gb`; "" is the whole file) and what is allowed."""

    path: str
    message: str

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        # One line each, whatever a file holds.
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


class ConfigError(Exception):
    """A configuration that is refused, with every problem of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = list(problems)


_SECRET = object()


def dotted(location: Iterable[str | int]) -> str:
    """`("models", 2, "name")` as `models[2].name`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{echo(part) or repr('')}"
    return path.removeprefix(".")


def allowed_text(annotation: Any) -> str:
    """What values an annotation allows, completing "must be …"."""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        stated = [mark.text for mark in metadata if isinstance(mark, Allowed)]
        return stated[0] if stated else allowed_text(base)
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(allowed_text(choice) for choice in get_args(annotation))
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(get_args(annotation))
    if get_origin(annotation) is list:
        return f"a list, each {allowed_text(get_args(annotation)[0])}"
    return _plain_text(annotation)


def _plain_text(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return "one of " + ", ".join(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "a mapping"
    return {bool: "true or false", type(None): "null"}[annotation]


def hints(section: type[Section]) -> dict[str, Any]:
    """The annotations of a section's keys, by key, with their marks."""
    every = get_type_hints(section, include_extras=True)
    return {key: every[key] for key in section.model_fields}


def nested_section(annotation: Any) -> type[Section] | None:
    """The section that a key holds; None where it holds a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def unknown_key(key: object, known: Iterable[str]) -> str:
    """The message about a key that nobody knows."""
    known = list(known)
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown key{hint} Allowed: {', '.join(known)}" if near else f"unknown key; allowed: {', '.join(known)}"


def problems_of(
    error: ValidationError, section: type[Section], prefix: Location, *, repeats_text: bool = True
) -> list[tuple[Location, Problem]]:
    """pydantic's findings about one section in our words: (location inside the section, problem). `repeats_text`
    False: no text that stands there is repeated, since it may be a secret."""
    found = []
    for detail in error.errors(include_url=False):
        location: Location = detail["loc"]
        if detail["type"] == "too_long":
            message = f"must have at most {detail['ctx']['max_length']} elements; got {detail['ctx']['actual_length']}"
        else:
            value = detail["input"] if repeats_text or not isinstance(detail["input"], str) else _SECRET
            message = _message(detail["type"], value, location, section)
        found.append((location, Problem(dotted((*prefix, *location)), message)))
    return found


def _message(kind: str, value: object, location: Location, section: type[Section]) -> str:
    owner, annotation = _owner(section, location)
    if kind == "extra_forbidden":
        return unknown_key(location[-1], owner.model_fields)
    allowed = allowed_text(annotation)
    if kind == "missing":
        return f"is required: {allowed}"
    return f"must be {allowed}; got {_shown(value)}"


def _owner(section: type[Section], location: Location) -> tuple[type[Section], Any]:
    """The section that holds the key at `location`, and that key's annotation (an element's, for a list's element)."""
    annotation: Any = section
    for part in location:
        if isinstance(part, int):
            annotation = get_args(annotation)[0]
            continue
        section = nested_section(annotation) or section
        annotation = hints(section).get(part, annotation)
    return section, annotation


def _shown(value: object) -> str:
    if value is _SECRET:
        return "text"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(echo(value)) if isinstance(value, str) else f"{echo(value)} ({type(value).__name__})"
