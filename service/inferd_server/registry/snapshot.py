"""What the registry shows of itself: frozen, one moment, never touching recency."""

from collections.abc import Mapping
from dataclasses import dataclass

from inferd_server.core.model import ModelEntry, ModelState

from .instances import Counters


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model. Times are unix seconds; `last_error` is (reason, message, time); `removed`: it left the registry;
    `load_seconds`: how long the load of this generation took."""

    entry: ModelEntry
    state: ModelState
    state_time: float
    load_progress: float = 0.0
    last_error: tuple[str, str, float] | None = None
    generation: int = 0
    charged_nbytes: int = 0
    weights_nbytes: int = 0
    estimated_nbytes: int = 0
    cache_nbytes: int = 0
    pinned: bool = False
    running: int = 0
    waiting: int = 0
    last_used_time: float = 0.0
    removed: bool = False
    load_seconds: float = 0.0
    step_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The budget of weights, and what the device says; bytes."""

    limit_nbytes: int
    used_nbytes: int
    reserved_nbytes: int
    ceiling_nbytes: int
    active_nbytes: int


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """Every model by name, and the budget, at one moment."""

    models: tuple[ModelSnapshot, ...]
    memory: MemorySnapshot


@dataclass(frozen=True, slots=True)
class RegistryStatistics:
    """For metrics: the budget, how many wait, models by state, and what happened so far."""

    memory: MemorySnapshot
    waiting: int
    leases: int
    states: Mapping[ModelState, int]
    counters: Counters


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Answer of `Registry.load`. With validate_only: whether it fits, bytes that lack, and the models in the way."""

    model: ModelSnapshot
    memory: MemorySnapshot
    evicted: tuple[str, ...] = ()
    load_seconds: float | None = None
    fits: bool = True
    missing_nbytes: int = 0
    blocking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnloadOutcome:
    """Answer of `Registry.unload`: bytes measured to come back."""

    model: ModelSnapshot
    freed_nbytes: int
