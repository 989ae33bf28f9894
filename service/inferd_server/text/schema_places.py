"""JSON Schemas into llguidance's grammars, and where in a schema an error is: llguidance's messages don't say."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import llguidance

from inferd_server.core.errors import echo

MAX_MULTIPLE = 10_000
"""Largest `multipleOf`, its decimal point left out: its automaton has as many states, and takes as long to build."""
MAX_TRIALS = 256

_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,  # compact: a weak model could fill max_tokens with blanks
    "lenient": False,
    "coerce_one_of": False,
}
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "additionalItems")


def compile_schema(text: str) -> str:
    """A JSON Schema as a grammar. Every output that the grammar allows is valid; a keyword that can't be enforced is
    an error.

    Raises:
        ValueError: what is wrong with the schema and at which JSON pointer.
    """
    schema = parse_schema(text)
    _check_multiples(schema)
    error = _error(schema)
    if error:
        raise ValueError(f"{_at(_place(schema, error))}: {_brief(error)}")
    return _grammar(schema)


def parse_schema(text: str) -> dict[str, Any]:
    """The schema without llguidance's own options, which could make its output anything but JSON."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(schema, dict):
        raise ValueError("must be a JSON object")
    schema.pop("x-guidance", None)
    return schema


def _grammar(schema: dict[str, Any]) -> str:
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)
    return grammar


def _error(schema: dict[str, Any]) -> str:
    try:
        message: str = llguidance.LLMatcher.validate_grammar(_grammar(schema))
    except ValueError as failure:
        return str(failure)
    return "" if message.startswith("WARNING") else message


def _place(root: dict[str, Any], error: str) -> str:
    """JSON pointer of the innermost part that has this error by itself, as far as a bounded search finds it."""
    shared: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    place, parts, seen = "", _parts(root, root, ""), {""}
    for _ in range(MAX_TRIALS):
        pointer, part = next(parts, ("", None))
        if part is None:
            break
        leads_back = not seen.isdisjoint({pointer, str(part.get("$ref")).removeprefix("#")})
        if not leads_back and _error(shared | part) == error:
            place, parts = pointer, _parts(root, part, pointer)
        seen.add(pointer)
    return place


def _parts(root: dict[str, Any], node: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(JSON pointer, part) of the schemas directly inside `node`, and of the one that it refers to."""
    found: list[tuple[str, Any]] = []
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found.append((reference[1:], _resolved(root, reference)))
    for name in _MAPS:
        if isinstance(node.get(name), dict) and not name.endswith(("defs", "definitions")):
            found += [(f"{place}/{name}/{_escaped(key)}", part) for key, part in node[name].items()]
    for name in _LISTS:
        if isinstance(node.get(name), list):
            found += [(f"{place}/{name}/{i}", part) for i, part in enumerate(node[name])]
    found += [(f"{place}/{name}", node.get(name)) for name in _SINGLES]
    return ((pointer, part) for pointer, part in found if isinstance(part, dict) and part)


def _resolved(root: dict[str, Any], reference: str) -> Any:
    node: Any = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _at(place: str) -> str:
    return f"at {echo(place)}" if place else "at the top"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _check_multiples(schema: dict[str, Any]) -> None:
    """ValueError for a multiple whose automaton would take seconds to build."""
    todo: list[tuple[str, Any]] = [("", schema)]
    while todo:
        place, node = todo.pop()
        if isinstance(node, dict):
            multiple = node.get("multipleOf")
            if isinstance(multiple, int | float) and _digits(multiple) > MAX_MULTIPLE:
                raise ValueError(f"{_at(place)}: multipleOf is finer or larger than can be followed")
            todo += [(f"{place}/{_escaped(key)}", part) for key, part in node.items()]
        elif isinstance(node, list):
            todo += [(f"{place}/{i}", part) for i, part in enumerate(node)]


def _digits(number: float) -> int:
    """A number without its decimal point and the zeros at its end: 0.25 is 25."""
    digits = Decimal(str(number)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def _brief(error: str) -> str:
    """What is wrong, in one line and without advice about options that aren't offered."""
    lines = [line.strip() for line in error.strip().split("\n")]
    told = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    return f"{lines[0].partition('. Enable ')[0]} {told}".strip()[:200]
