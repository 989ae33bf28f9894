"""What the machine is told. Every input is plain data; the time it happened is passed beside it."""

from dataclasses import dataclass

from inferd_server.core.errors import InferdError
from inferd_server.core.model import ContentionPolicy, ModelEntry, UnloadMode

from .lease import LeaseRequest


@dataclass(frozen=True, slots=True)
class Ask:
    """A request wants a lease; the lease will carry the ticket's number."""

    ticket: int
    request: LeaseRequest


@dataclass(frozen=True, slots=True)
class LoadWanted:
    """Somebody wants a model resident: LoadModel, a preload.

    Attributes:
        reload: a new generation, even if it is resident.
        detached: nobody waits for the answer; it takes the place of an earlier one for the model.
    """

    ticket: int
    name: str
    policy: ContentionPolicy
    pin: bool | None = None
    reload: bool = False
    detached: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """The owner of a ticket went away; unknown tickets are no error."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Released:
    """A lease came back."""

    lease: int


@dataclass(frozen=True, slots=True)
class UnloadWanted:
    """Somebody wants a model out of memory. `drain_seconds` None: drain without a limit."""

    order: int
    name: str
    mode: UnloadMode
    drain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CheckFinished:
    """The cheap check before a load ended, with `error` if it failed. `files_nbytes` None: they can't be measured;
    `entry` None: nothing is known of them beyond that."""

    name: str
    check: int
    error: InferdError | None = None
    files_nbytes: int | None = None
    entry: ModelEntry | None = None


@dataclass(frozen=True, slots=True)
class LoadFinished:
    """An engine is open and warm; its weights were measured."""

    name: str
    generation: int
    weights_nbytes: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A load ended without an engine and its memory is free. `error` None: it was abandoned as asked."""

    name: str
    generation: int
    error: InferdError | None = None


@dataclass(frozen=True, slots=True)
class UnloadFinished:
    """An engine's end is proved; so many bytes were measured to come back."""

    name: str
    generation: int
    freed_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class UnloadFailed:
    """An engine's end could not be proved: its bytes stay charged."""

    name: str
    generation: int
    error: InferdError


@dataclass(frozen=True, slots=True)
class Died:
    """An engine died after its load."""

    name: str
    generation: int
    error: InferdError


@dataclass(frozen=True, slots=True)
class EntriesReplaced:
    """The configuration was read again: every model that exists from now on."""

    entries: tuple[ModelEntry, ...]


@dataclass(frozen=True, slots=True)
class WaitingEnded:
    """Nobody may wait any more: each ticket ends with `error`, and so does each later one."""

    error: InferdError


@dataclass(frozen=True, slots=True)
class Closed:
    """Everything ends: requests with `error`, loads, engines."""

    error: InferdError


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""


Input = (
    Ask
    | LoadWanted
    | Cancel
    | Released
    | UnloadWanted
    | CheckFinished
    | LoadFinished
    | LoadFailed
    | UnloadFinished
    | UnloadFailed
    | Died
    | EntriesReplaced
    | WaitingEnded
    | Closed
    | Tick
)
