"""What the event loop and the thread of an engine tell each other: commands go in, reports come out, each in order."""

from dataclasses import dataclass

from inferd_server.core.errors import InferdError
from inferd_server.core.work import Piece, Work

# --- commands, loop to thread


@dataclass(frozen=True, slots=True)
class Insert:
    """Start a sequence; `Inserted` or `Rejected` answers."""

    number: int
    request: Work


@dataclass(frozen=True, slots=True)
class Remove:
    """Drop a sequence; no report answers."""

    number: int


@dataclass(frozen=True, slots=True)
class HandBack:
    """Drop every sequence inserted so far; `HandedBack` answers, behind all their tokens."""

    by_model: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Look at `is_stopping`."""


@dataclass(frozen=True, slots=True)
class BoundPrefixCache:
    """Let the prefix cache hold at most this from now on."""

    nbytes: int


Command = Insert | Remove | HandBack | Wake | BoundPrefixCache


# --- reports, thread to loop; a bare list is the tokens of one step


@dataclass(frozen=True, slots=True)
class Inserted:
    """The sequence `number` emits tokens as `uid` from here on."""

    number: int
    uid: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The engine did not take the sequence `number`."""

    number: int
    error: InferdError


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Every sequence inserted before this is out of the engine."""

    by_model: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A step failed: every sequence inserted before this is gone."""


@dataclass(frozen=True, slots=True)
class Died:
    """The engine can't go on; the thread is about to end."""


Report = list[Piece] | Inserted | Rejected | HandedBack | Lost | Died
