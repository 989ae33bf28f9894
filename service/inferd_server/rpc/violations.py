"""Collecting what is wrong with a request, all of it, before anything is refused."""

import math
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from inferd_server.core.errors import FieldViolation, invalid_parameter

from .json_text import parse_object
from .times import is_valid


class Violations:
    """Bad fields in the order in which they were found.

    Attributes:
        found: the fields.
        parses_json: whether JSON texts are parsed; not where they are too much in all.
    """

    def __init__(self) -> None:
        self.found: list[FieldViolation] = []
        self.parses_json = True

    def add(self, field: str, description: str) -> None:
        """Note that `field` (its path as in the proto) is bad."""
        self.found.append(FieldViolation(field, description))

    def require(self, holds: bool, field: str, description: str) -> bool:
        """Note `field` unless the claim holds; returns the claim."""
        if not holds:
            self.add(field, description)
        return holds

    def raise_if_any(self) -> None:
        """Raise INVALID_PARAMETER with everything that was found."""
        if self.found:
            raise invalid_parameter(self.found)

    def check_length(self, text: str, field: str, limit: int, *, least: int = 0) -> bool:
        """Between `least` and `limit` characters."""
        if len(text) < least:
            return self.require(False, field, "must not be empty" if least == 1 else f"needs {least} characters")
        return self.require(len(text) <= limit, field, f"has {len(text)} characters; at most {limit} are allowed")

    def check_json_object(self, text: str, field: str, limit: int, *, least: int = 0) -> dict[str, object]:
        """A JSON object as text of `least` to `limit` characters; returns it, {} where there is none to return."""
        if self.check_length(text, field, limit, least=least) and text and self.parses_json:
            try:
                return parse_object(text)
            except ValueError as error:
                self.add(field, str(error))
        return {}

    def check_duration(self, duration: Duration, field: str) -> bool:
        """A duration by protobuf's rules that is not negative."""
        claim = is_valid(duration) and duration.seconds >= 0 and duration.nanos >= 0
        return self.require(claim, field, "must be a valid duration that is not negative")


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers allowed for a field; NaN is in none, infinity in none with a finite end."""

    low: float
    high: float
    without_low: bool = False

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and value <= self.high and (value > self.low or self._holds_low(value))

    def _holds_low(self, value: float) -> bool:
        return value == self.low and not self.without_low

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"finite and {'above' if self.without_low else 'at least'} {self.low:g}"
        return f"in {'(' if self.without_low else '['}{self.low:g}, {self.high:g}]"
