"""One section of a document: typed, with what is bad in it told and left out."""

from copy import deepcopy
from typing import Any, TypeVar

from pydantic import ValidationError

from . import rules
from .document import Document
from .problems import Location, Problem, problems_of
from .schema import ManagerSection, ModelSection, Section

S = TypeVar("S", bound=Section)
# What a required key is taken for after its own problem was noted, so that the rules can go on to find the others.
_STAND_INS: dict[type[Section], Document] = {
    ManagerSection: {"memory_budget_gb": 1_048_576},
    ModelSection: {"name": "unnamed"},
}


def read_section(kind: type[S], raw: object, prefix: Location, problems: list[Problem]) -> S:
    """A section; what is bad in it is added to `problems` and stands at its default."""
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        problems += [p for _, p in problems_of(_rejection(kind, raw), kind, prefix)]
        raw = dict(_STAND_INS.get(kind, {}))
    try:
        section = kind.model_validate(raw)
    except ValidationError as error:
        found = problems_of(error, kind, prefix)
        problems += [problem for _, problem in found]
        section = kind.model_validate(_without(raw, [location for location, _ in found], kind))
    problems += rules.later_problems(section, prefix)
    return section


def _rejection(kind: type[Section], raw: object) -> ValidationError:
    try:
        kind.model_validate(raw)
    except ValidationError as error:
        return error
    raise AssertionError(f"{kind.__name__} accepts {type(raw).__name__}")


def _without(raw: Document, locations: list[Location], kind: type[Section]) -> Document:
    """A copy without the bad keys (a list with a bad element goes whole), and with stand-ins for required ones."""
    rest = deepcopy(raw)
    for location in locations:
        keys = location[: next((i for i, part in enumerate(location) if isinstance(part, int)), len(location))]
        place: Any = rest
        for key in keys[:-1]:
            place = place.get(key, {})
        place.pop(keys[-1], None)
    return {**_STAND_INS.get(kind, {}), **rest}
