"""Models and their instances: plain mutable facts, changed only by residency.py."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from inferd_server.core.errors import InferdError
from inferd_server.core.model import ModelEntry, ModelState, UnloadMode

from .lease import LeaseRecord
from .ledger import InstanceKey


class EngineLife(StrEnum):
    """Whether an instance's engine may hold memory: the ledger has an entry for each but ABSENT."""

    ABSENT = "absent"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    LOST = "lost"  # its end could not be proved


class Cause(StrEnum):
    """Why an instance leaves."""

    NONE = "none"
    RIVAL = "rival"
    UNLOAD = "unload"
    RELOAD = "reload"
    IDLE = "idle"
    CLOSE = "close"


class Check(StrEnum):
    """The cheap check of a model's files before anything is evicted for it."""

    NONE = "none"
    RUNNING = "running"
    PASSED = "passed"


@dataclass(slots=True, eq=False)
class Instance:
    """One generation of a model: from its reservation to the proved end of its engine."""

    name: str
    since: float
    entry: ModelEntry  # as it was when the load started
    generation: int = 0
    state: ModelState = ModelState.UNLOADED
    engine: EngineLife = EngineLife.ABSENT
    cause: Cause = Cause.NONE
    claimed_by: str = ""  # the model whose ticket it leaves for
    leases: dict[int, LeaseRecord] = field(default_factory=dict)
    unpreemptible: int = 0  # leases that nobody may interrupt
    load_started_at: float = 0.0
    loaded_at: float = 0.0
    last_used_at: float = 0.0
    load_seconds: float = 0.0
    growing_nbytes: int = 0  # loaded, and larger than reserved: waits for room to settle
    weights_nbytes: int = 0
    idleness_watched: bool = False  # an alarm is set

    @property
    def key(self) -> InstanceKey:
        """Its name in the ledger."""
        return (self.name, self.generation)


def with_files_of(entry: ModelEntry, other: ModelEntry) -> ModelEntry:
    """`entry`, with everything in it that comes from a model's files taken from `other`."""
    return replace(
        entry,
        engine=other.engine,
        revision=other.revision,
        architecture=other.architecture,
        capabilities=other.capabilities,
        context_length=other.context_length,
        vocabulary_size=other.vocabulary_size,
        quantization_bits=other.quantization_bits,
        tool_call_parser=other.tool_call_parser,
        reasoning_parser=other.reasoning_parser,
        embedder=other.embedder,
        reranker=other.reranker,
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model failed, and until when it is left alone."""

    error: InferdError
    at: float
    failures: int
    retry_at: float


@dataclass(slots=True, eq=False)
class UnloadOrder:
    """An UnloadModel under way: done when each of `generations` has ended."""

    id: int
    mode: UnloadMode
    generations: set[int]
    waits_for_load: bool = False  # drain: the tickets of its time are served first
    last_ticket: int = 0
    freed_nbytes: int = 0


@dataclass(slots=True, eq=False)
class Model:
    """One configured model.

    Attributes:
        current: the instance that clients see; the only one that may admit requests.
        successor: a newer generation being loaded beside it (reload).
        retiring: older generations that have not ended yet.
        files_nbytes: of its weight files, as the last check measured them; 0 before the first.
        loaded_nbytes: of the weights that the last load of these files measured; 0 before the first.
    """

    entry: ModelEntry
    current: Instance
    pinned: bool
    successor: Instance | None = None
    retiring: list[Instance] = field(default_factory=list)
    generations: int = 0
    check: Check = Check.NONE
    checks: int = 0
    files_nbytes: int = 0
    loaded_nbytes: int = 0
    failure: Failure | None = None
    deaths: int = 0
    evicted: list[str] = field(default_factory=list)  # for the load that is wanted now
    orders: list[UnloadOrder] = field(default_factory=list)
    removed: bool = False

    @property
    def name(self) -> str:
        """Its canonical name."""
        return self.entry.name

    @property
    def state(self) -> ModelState:
        """What clients see."""
        return self.current.state

    @property
    def served_entry(self) -> ModelEntry:
        """Its entry as requests meet it: while an engine is open, what comes from the files is what it was opened with,
        though a new configuration may name others."""
        opened = self.current.entry
        if opened is self.entry or self.current.engine is EngineLife.ABSENT:
            return self.entry
        return with_files_of(self.entry, opened)

    @property
    def is_loading(self) -> bool:
        """Whether a load is under way: its tickets have their room."""
        return self.current.state is ModelState.LOADING or self.successor is not None

    @property
    def need_nbytes(self) -> int:
        """What a load reserves: the estimate, or what the last load needed, if that was more."""
        return max(self.entry.estimated_bytes, self.loaded_nbytes)

    def instances(self) -> list[Instance]:
        """Every generation that may hold memory, and the current one."""
        beside = [] if self.successor is None else [self.successor]
        return [self.current, *beside, *self.retiring]

    def running(self) -> int:
        """Leases of all its generations."""
        return sum(len(instance.leases) for instance in self.instances())


@dataclass(slots=True, eq=False)
class Claim:
    """The room made for one model: its victims, and what they have given back so far, are spoken for."""

    model: str
    need_nbytes: int
    victims: dict[InstanceKey, Instance] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    """What happened so far; metrics read it through `Registry.statistics()`."""

    loads: int = 0
    load_failures: int = 0
    deaths: int = 0
    evictions: int = 0
    preemptions: int = 0
    interrupted_requests: int = 0
    drains: int = 0
    idle_unloads: int = 0
    abandoned_loads: int = 0
    grants: int = 0
    refusals: int = 0
