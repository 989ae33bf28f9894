"""How much room there is, and who could make more: a fold over the instances, taken for one pass of the planner."""

import math
from collections.abc import Container
from dataclasses import dataclass, field

from inferd_server.core.model import ModelState

from .instances import Claim, EngineLife, Instance, Model
from .policy import spared_until
from .residency import Residency


@dataclass(frozen=True, slots=True)
class Victim:
    """An instance that could go, and the bytes it would give back."""

    instance: Instance
    nbytes: int


@dataclass(slots=True)
class Room:
    """Bytes nobody owns, and instances by what keeps them.

    Attributes:
        free: available now and spoken for by no claim; negative while claims count on `coming`.
        coming: being freed already, and spoken for by no claim.
        idle: can be evicted now, least recently used first; then loads that nobody waits for.
        busy: unpinned and serving: idle sooner or later.
        young: unpinned, loaded less than min_residency ago.
        others: charged and none of the above (loading, leaving, pinned, failed).
        youth_ends_at: when the first of `young` may be evicted.
    """

    free: int
    coming: int = 0
    idle: list[Victim] = field(default_factory=list)
    busy: list[Victim] = field(default_factory=list)
    young: list[Victim] = field(default_factory=list)
    others: list[Victim] = field(default_factory=list)
    youth_ends_at: float = math.inf
    _idle_nbytes: int | None = None
    _releasable: list[int] | None = None

    @property
    def reachable(self) -> int:
        """Bytes to be had without touching a request."""
        if self._idle_nbytes is None:
            self._idle_nbytes = sum(victim.nbytes for victim in self.idle)
        return self.free + self.coming + self._idle_nbytes

    def releasable(self) -> list[int]:
        """What each instance gives back that is in use now and will not be for ever."""
        if self._releasable is None:
            passing = [v for v in self.others if not v.instance.claimed_by and not _is_fixed(v.instance)]
            self._releasable = [victim.nbytes for victim in (*self.busy, *self.young, *passing)]
        return self._releasable


def _is_fixed(instance: Instance) -> bool:
    return instance.state in (ModelState.LOADED, ModelState.FAILED)


def owed_nbytes(claim: Claim, residency: Residency) -> int:
    """What a claim owns of the bytes that are available: its need without what its victims will still give."""
    return max(0, claim.need_nbytes - sum(residency.nbytes(victim) for victim in claim.victims.values()))


def unowned_nbytes(residency: Residency, *, but: str = "") -> int:
    """Available bytes that no claim (other than that of `but`) and no growing instance owns."""
    owed = sum(owed_nbytes(claim, residency) for name, claim in residency.claims.items() if name != but)
    growing = sum(instance.growing_nbytes for instance in residency.open.values())
    return residency.ledger.available_nbytes - owed - growing


def survey(residency: Residency, wanted: Container[str], now: float) -> Room:
    """Take stock. `wanted`: models with tickets, whose loads go on."""
    room = Room(unowned_nbytes(residency))
    unwanted: list[Victim] = []
    for instance in residency.open.values():
        victim = Victim(instance, residency.nbytes(instance))
        model = residency.models[instance.name]
        if instance.state is ModelState.UNLOADING:
            if instance.claimed_by:
                room.others.append(victim)
            else:
                room.coming += victim.nbytes
        elif instance.state is ModelState.LOADING and not model.pinned and model.name not in wanted:
            unwanted.append(victim)
        elif instance.state is not ModelState.LOADED or model.pinned or model.successor is not None:
            room.others.append(victim)
        else:
            _sort_loaded(room, residency, victim, now)
    room.idle.sort(key=lambda victim: (victim.instance.last_used_at, victim.instance.key))
    room.idle += unwanted
    return room


def _sort_loaded(room: Room, residency: Residency, victim: Victim, now: float) -> None:
    youth_ends_at = victim.instance.loaded_at + residency.limits.min_residency_seconds
    if youth_ends_at > now:
        room.young.append(victim)
        room.youth_ends_at = min(room.youth_ends_at, youth_ends_at)
    elif victim.instance.leases:
        room.busy.append(victim)
    else:
        room.idle.append(victim)


def preemptible_at(instance: Instance, rival: str, now: float) -> float:
    """From when on a rival may interrupt every request of an instance; `now` if at once, infinite if it may not."""
    if instance.unpreemptible:
        return math.inf
    return max((spared_until(record.preemptions, rival, now) for record in instance.leases.values()), default=now)


def cost(victim: Victim) -> tuple[int, int, float]:
    """What a preemption loses, cheapest first: priority, then work, then recency."""
    records = victim.instance.leases.values()
    return (
        max((record.request.priority for record in records), default=0),
        sum(record.request.work_done() for record in records),
        victim.instance.last_used_at,
    )


def is_immovable(instance: Instance, model: Model) -> bool:
    """Whether no preemption will ever move it, as things stand: pinned, or with a request that nobody may interrupt."""
    if instance.engine is EngineLife.ABSENT:
        return False
    if instance.state is ModelState.LOADED:
        return model.pinned or instance.unpreemptible > 0
    return model.pinned and instance.state is ModelState.LOADING
