"""What the machine asks for. The shell carries the effects out in order; slow ones come back as inputs."""

from dataclasses import dataclass

from inferd_server.core.errors import InferdError
from inferd_server.core.model import ModelEntry, ModelState

from .lease import LeaseRecord


@dataclass(frozen=True, slots=True)
class Grant:
    """The ticket holds a lease from this moment on."""

    ticket: int
    name: str
    generation: int
    entry: ModelEntry
    record: LeaseRecord
    waited_seconds: float
    loading_seconds: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """The ticket (or unload order) ends with an error."""

    ticket: int
    error: InferdError


@dataclass(frozen=True, slots=True)
class AnswerLoad:
    """The ticket's model is resident. `load_seconds` None: it was so already."""

    ticket: int
    evicted: tuple[str, ...]
    load_seconds: float | None


@dataclass(frozen=True, slots=True)
class AnswerUnload:
    """The order is done; so many bytes came back."""

    order: int
    freed_nbytes: int


@dataclass(frozen=True, slots=True)
class StartCheck:
    """Check a model's files; answer with CheckFinished."""

    name: str
    check: int


@dataclass(frozen=True, slots=True)
class StartLoad:
    """Load; answer with LoadFinished or LoadFailed."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class AbandonLoad:
    """Give a load up; its LoadFailed or LoadFinished still has to come."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class StartUnload:
    """Close an engine that nobody uses; answer with UnloadFinished or UnloadFailed."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Hand the requests of an instance back for another model's sake."""

    name: str
    generation: int
    by_model: str


@dataclass(frozen=True, slots=True)
class ResumeAdmission:
    """Admit again after an Interrupt."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Abort:
    """End the requests of an instance with an error."""

    name: str
    generation: int
    error: InferdError


@dataclass(frozen=True, slots=True)
class Changed:
    """A model's state or generation changed; `removed`: what it was before it left the registry."""

    name: str
    state: ModelState
    state_since: float
    removed: ModelEntry | None = None


Effect = (
    Grant
    | Refuse
    | AnswerLoad
    | AnswerUnload
    | StartCheck
    | StartLoad
    | AbandonLoad
    | StartUnload
    | Interrupt
    | ResumeAdmission
    | Abort
    | Changed
)
