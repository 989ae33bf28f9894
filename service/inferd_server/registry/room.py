"""How much room there is, and who could make more: a fold over the instances, taken for one pass of the planner."""

import math
from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from inferd_server.core.model import ModelState

from .instances import Claim, Instance, Model
from .planner import Releases, releases
from .policy import spared_until
from .residency import Residency


class Victim(NamedTuple):
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
        draining: for an UnloadModel, and for nobody's room yet: a preemption may end their requests sooner.
        awaited_nbytes: of each instance that is in use, or on its way, and will not be for ever.
        fixed_nbytes: of the pinned, and of engines that failed and have not ended: no wait brings them back.
        immovable_nbytes: of instances that no preemption ever moves, as things stand.
        youth_ends_at: when the first unpinned instance will be old enough to be evicted.
    """

    free: int
    coming: int = 0
    idle: list[Victim] = field(default_factory=list)
    busy: list[Victim] = field(default_factory=list)
    draining: list[Victim] = field(default_factory=list)
    awaited_nbytes: list[int] = field(default_factory=list)
    fixed_nbytes: int = 0
    immovable_nbytes: int = 0
    youth_ends_at: float = math.inf
    _idle_nbytes: int | None = None
    _releases: Releases | None = None

    @property
    def reachable(self) -> int:
        """Bytes to be had without touching a request."""
        if self._idle_nbytes is None:
            self._idle_nbytes = sum(victim.nbytes for victim in self.idle)
        return self.free + self.coming + self._idle_nbytes

    @property
    def releases(self) -> Releases:
        """What will come back sooner or later."""
        if self._releases is None:
            self._releases = releases(self.awaited_nbytes)
        return self._releases


def owed_nbytes(claim: Claim, residency: Residency) -> int:
    """What a claim owns of the bytes that are available: its need without what its victims will still give."""
    return max(0, claim.need_nbytes - sum(residency.nbytes(victim) for victim in claim.victims.values()))


def unowned_nbytes(residency: Residency) -> int:
    """Available bytes that no claim and no growing instance owns."""
    owed = sum(owed_nbytes(claim, residency) for claim in residency.claims.values())
    growing = sum(instance.growing_nbytes for instance in residency.open.values())
    return residency.ledger.available_nbytes - owed - growing


def survey(residency: Residency, wanted: Container[str], now: float) -> Room:
    """Take stock. `wanted`: models with tickets, whose loads go on."""
    room = Room(unowned_nbytes(residency))
    unwanted: list[Victim] = []
    for key, instance in residency.open.items():
        victim = Victim(instance, residency.ledger.charged_nbytes(key))
        model = residency.models[instance.name]
        if is_immovable(instance, model):
            room.immovable_nbytes += victim.nbytes
        if model.pinned or instance.state in (ModelState.FAILED, ModelState.QUEUED):
            room.fixed_nbytes += victim.nbytes
        if instance.state is ModelState.LOADED:
            if not model.pinned and model.successor is None:
                _sort_serving(room, victim, instance.loaded_at + residency.limits.min_residency_seconds, now)
        elif instance.claimed_by or instance.state in (ModelState.FAILED, ModelState.QUEUED):
            pass  # spoken for; or failed, and whether its engine ever ends nobody knows
        elif instance.state is ModelState.UNLOADING:
            room.coming += victim.nbytes
        elif instance.state is ModelState.LOADING and not model.pinned and model.name not in wanted:
            unwanted.append(victim)
        elif _drains_for_unload(instance, model):
            _sort_serving(room, victim, instance.loaded_at + residency.limits.min_residency_seconds, now)
        else:
            room.awaited_nbytes.append(victim.nbytes)
    room.idle.sort(key=lambda victim: victim.instance.last_used_at)
    room.idle += unwanted
    return room


def _drains_for_unload(instance: Instance, model: Model) -> bool:
    """Whether an UnloadModel drains it, and its requests, interrupted, would find their model again. Not an older
    generation: its requests end on the weights they began with."""
    drains = instance.state is ModelState.DRAINING and instance is model.current
    return drains and bool(model.orders) and not (model.pinned or model.removed)


def _sort_serving(room: Room, victim: Victim, youth_ends_at: float, now: float) -> None:
    if youth_ends_at <= now and not victim.instance.leases:
        room.idle.append(victim)
        return
    room.awaited_nbytes.append(victim.nbytes)
    if youth_ends_at <= now:
        is_loaded = victim.instance.state is ModelState.LOADED
        (room.busy if is_loaded else room.draining).append(victim)
    elif youth_ends_at < room.youth_ends_at:
        room.youth_ends_at = youth_ends_at


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
    if instance.state is ModelState.LOADED:
        return model.pinned or instance.unpreemptible > 0
    return model.pinned and instance.state is ModelState.LOADING
