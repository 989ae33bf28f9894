"""Words about constrained output: what a request asks for, and how an engine follows it without knowing grammars."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ConstraintKind(StrEnum):
    """What a constraint is written in; the values are the fields of inferd.v1.OutputConstraint."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK_GRAMMAR = "lark_grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint as asked for: `options` of a CHOICE, the `text` of every other kind."""

    kind: ConstraintKind
    text: str = ""
    options: tuple[str, ...] = ()


class ConstraintBroken(Exception):
    """An output can't go on under its constraint: a token that it forbids, or one that costs too much to follow."""


class Matcher(Protocol):
    """Follows one output, token by token. Not for several threads at once."""

    def allowed(self) -> bytes:
        """Which ids may come next: id i is bit i % 8, counted from the lowest, of byte i // 8. Ids beyond are not
        allowed; end ids are once the output is complete, and nothing else if it can't be continued.

        Raises:
            ConstraintBroken: following this output costs more than one may.
        """

    def accept(self, ids: Sequence[int]) -> None:
        """Take the next tokens of the output.

        Raises:
            ConstraintBroken: one of them was not allowed.
        """


class Grammar(Protocol):
    """A constraint compiled for one model's tokens; unchanging, so any number of outputs share it."""

    def matcher(self) -> Matcher:
        """A matcher at the start of an output."""
