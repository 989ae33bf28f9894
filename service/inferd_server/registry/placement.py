"""The planner's pass: which tickets get room now, and what has to leave for them (docs/semantics.md §4).

Claims come first, then the groups of tickets in the order of the queue, up to a bounded number. The first group that
finds no room is the *head*: later ones may only take what does not delay it. Each plan is made before anything is
touched, and committed whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferd_server.core.errors import InferdError, capacity_exhausted
from inferd_server.core.model import ModelState

from .instances import Cause, Check, Claim, EngineLife, Instance, Model
from .planner import delays, smallest_set
from .residency import Residency
from .room import Room, Victim, cost, is_immovable, owed_nbytes, preemptible_at, survey, unowned_nbytes
from .tickets import Group, Outlook, Ticket, TicketQueue

LOOKAHEAD_GROUPS = 16
"""So many groups of waiting tickets are looked at in one pass."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a load would need: the models that would be evicted, or the bytes that lack and the models in the way."""

    fits: bool
    evicted: tuple[str, ...] = ()
    missing_nbytes: int = 0
    blocking: tuple[str, ...] = ()


class Placement:
    """Finds room for tickets. `refuse` ends a ticket with an error."""

    def __init__(
        self, residency: Residency, queue: TicketQueue, refuse: Callable[[Ticket, InferdError, float], None]
    ) -> None:
        self._residency = residency
        self._queue = queue
        self._refuse = refuse
        self._wake_at = math.inf
        self._room: Room | None = None
        self._spoken_for = 0  # bytes that a group of this pass waits for, without a claim

    def plan(self, now: float) -> float:
        """Do all that can be done now; returns when a look is worth while again if nothing happens before."""
        self._wake_at = math.inf
        self._room = None
        self._spoken_for = 0
        self._advance_claims(now)
        head: Group | None = None
        looked_at = 0
        for group in self._queue.in_order():
            if not self._is_waiting(group):
                continue
            looked_at += 1
            if looked_at > LOOKAHEAD_GROUPS:
                break
            group.outlook = self._place(group, head, now)
            if group.outlook is Outlook.BLOCKED:
                self._wake(self._take_stock(now).youth_ends_at, now)
                self._refuse_impatient(group, now)
            if head is None and self._is_held_up(group, now):
                head = group
        return self._wake_at

    def look_at(self, group: Group, now: float) -> None:
        """Decide a newcomer's fate by what is known of its group, or where the pass did not reach it."""
        if group.impatient and group.outlook is Outlook.BLOCKED and self._is_waiting(group):
            self._room = None
            self._refuse_impatient(group, now)

    # --- claims --------------------------------------------------------------------------------------------------

    def _advance_claims(self, now: float) -> None:
        unowned = unowned_nbytes(self._residency)  # folded again only when it has changed: claims may be many
        for name in list(self._residency.claims):
            claim = self._residency.claims.get(name)
            group = self._queue.groups.get(name)
            if claim is None or group is None:
                continue
            model = self._residency.models[name]
            if self._may_start(model) and claim.need_nbytes <= unowned + owed_nbytes(claim, self._residency):
                self._start(model, now)
            elif claim.victims:
                self._sharpen(claim, group, now)
                continue
            else:
                self._residency.drop_claim(name, now)
            unowned = unowned_nbytes(self._residency)

    def _sharpen(self, claim: Claim, group: Group, now: float) -> None:
        """A claim that drains may interrupt as soon as a ticket of it may preempt."""
        if group.preempts_at > now:
            self._wake(group.preempts_at, now)
            return
        for victim in list(claim.victims.values()):
            if victim.state is ModelState.DRAINING and victim.name != claim.model and victim.cause is Cause.RIVAL:
                moment = preemptible_at(victim, claim.model, now)
                if moment <= now:
                    self._residency.preempt(victim, claim.model, now)
                self._wake(moment, now)

    # --- one group -----------------------------------------------------------------------------------------------

    def _is_waiting(self, group: Group) -> bool:
        """Whether a group wants room that it has not got."""
        model = self._residency.models[group.model]
        if model.successor is not None or group.model in self._residency.claims:
            return False
        if model.state is ModelState.LOADED:
            return group.wants_reload
        return model.state is not ModelState.LOADING

    def _may_start(self, model: Model) -> bool:
        """Whether nothing but room stands between a model and its load."""
        if model.check is not Check.PASSED or model.retiring:
            return False
        if model.state is ModelState.QUEUED:
            return model.current.engine is EngineLife.ABSENT
        return model.state is ModelState.LOADED

    def _place(self, group: Group, head: Group | None, now: float) -> Outlook:
        model = self._residency.models[group.model]
        room = self._take_stock(now)
        may_start = self._may_start(model)
        if head is None or not self._delays(head, model.need_nbytes, room):
            victims = _evictions(model, room)
            if victims is not None:
                return self._take_room(model, room, victims, now) if may_start else self._pending(model)
        if not may_start:
            return Outlook.BLOCKED
        if model.state is ModelState.LOADED and self._drain_for_reload(model, room, now):
            return Outlook.CLAIMED
        return self._make_room(group, model, head, room, now)

    def _pending(self, model: Model) -> Outlook:
        """There is room, and the model is not ready for it: its files are unchecked or its last instance still there.
        One that drains may do so for long, so it offers no prospect to those who would fail at once."""
        return Outlook.BLOCKED if model.state in (ModelState.DRAINING, ModelState.PREEMPTING) else Outlook.CHECKING

    def _take_room(self, model: Model, room: Room, victims: Sequence[Victim], now: float) -> Outlook:
        """Idle instances are enough: start, wait for what is coming, or evict."""
        if model.need_nbytes <= room.free:
            self._start(model, now)
            return Outlook.CLAIMED
        if not victims:
            self._spoken_for += model.need_nbytes
            self._room = None
            return Outlook.COMING
        self._evict(model, victims, now)
        return Outlook.CLAIMED

    def _drain_for_reload(self, model: Model, room: Room, now: float) -> bool:
        """Both generations do not fit: the older one has to end first, after its requests."""
        own = Victim(model.current, self._residency.nbytes(model.current))
        others = [victim for victim in room.idle if victim.instance is not model.current]
        victims = smallest_set(model.need_nbytes - room.free - room.coming - own.nbytes, others)
        if victims is None:
            return False
        claim = self._residency.claim(model)
        self._residency.own(claim, model.current)
        self._residency.drain(model.current, Cause.RELOAD, now)
        self._evict(model, victims, now)
        return True

    def _make_room(self, group: Group, model: Model, head: Group | None, room: Room, now: float) -> Outlook:
        """Idle instances are not enough: the policies decide."""
        if self._may_preempt(group, head, now) and self._preempt(model, room, now):
            return Outlook.CLAIMED
        if head is None and self._is_due(group, now) and self._drain(model, room, now):
            return Outlook.CLAIMED
        return Outlook.BLOCKED

    def _may_preempt(self, group: Group, head: Group | None, now: float) -> bool:
        """Whether a ticket's time to preempt has come, and no older claim to fairness stands before it."""
        if group.preempts_at > now:
            self._wake(group.preempts_at, now)
            return False
        if head is None:
            return True
        if head.head_priority > group.head_priority:
            return False
        return not self._is_due(head, now)

    def _is_held_up(self, group: Group, now: float) -> bool:
        """Whether room is kept for a group: it waits, not for requests of its own model, and waiting can help it."""
        if not group.tickets or group.outlook not in (Outlook.BLOCKED, Outlook.CHECKING):
            return False
        model = self._residency.models[group.model]
        if model.state in (ModelState.DRAINING, ModelState.PREEMPTING):
            return False
        fixed_nbytes = self._take_stock(now).fixed_nbytes
        return self._residency.ledger.limit_nbytes - fixed_nbytes >= model.need_nbytes

    def _is_due(self, group: Group, now: float) -> bool:
        patience_seconds = self._residency.limits.drain_busy_after_seconds
        if patience_seconds <= 0:
            return False
        due_at = group.oldest_arrival + patience_seconds
        self._wake(due_at, now)
        return due_at <= now

    # --- making room ---------------------------------------------------------------------------------------------

    def _preempt(self, model: Model, room: Room, now: float) -> bool:
        candidates = []
        for victim in [*room.busy, *room.draining]:
            if victim.instance is model.current:
                continue
            moment = preemptible_at(victim.instance, model.name, now)
            if moment <= now:
                candidates.append(victim)
            self._wake(moment, now)
        return self._displace(model, room, candidates, self._interrupt, now)

    def _drain(self, model: Model, room: Room, now: float) -> bool:
        candidates = [victim for victim in room.busy if victim.instance is not model.current]
        return self._displace(model, room, candidates, self._let_finish, now)

    def _displace(
        self,
        model: Model,
        room: Room,
        candidates: list[Victim],
        remove: Callable[[Instance, str, float], None],
        now: float,
    ) -> bool:
        candidates.sort(key=cost)
        idle = [victim for victim in room.idle if victim.instance is not model.current]
        victims = smallest_set(model.need_nbytes - room.free - room.coming, [*idle, *candidates])
        if victims is None or not any(victim.instance.leases for victim in victims):
            return False  # idle ones alone would do: they are kept for the head
        claim = self._residency.claim(model)
        for victim in victims:
            self._residency.own(claim, victim.instance)
            if victim.instance.leases:
                model.evicted.append(victim.instance.name)
                remove(victim.instance, model.name, now)
            else:
                self._send_away(model, victim.instance, now)
        self._room = None
        return True

    def _interrupt(self, instance: Instance, rival: str, now: float) -> None:
        self._residency.preempt(instance, rival, now)

    def _let_finish(self, instance: Instance, _rival: str, now: float) -> None:
        self._residency.counters.drains += 1
        self._residency.drain(instance, Cause.RIVAL, now)

    def _evict(self, model: Model, victims: Sequence[Victim], now: float) -> None:
        claim = self._residency.claim(model)
        for victim in victims:
            self._residency.own(claim, victim.instance)
            self._send_away(model, victim.instance, now)
        self._room = None

    def _send_away(self, model: Model, instance: Instance, now: float) -> None:
        if instance.state is ModelState.LOADING:
            self._residency.abandon(instance, Cause.RIVAL, now)
            return
        self._residency.counters.evictions += 1
        model.evicted.append(instance.name)
        self._residency.drain(instance, Cause.RIVAL, now)

    def _start(self, model: Model, now: float) -> None:
        self._residency.start_load(model, now)
        self._room = None

    # --- looking -------------------------------------------------------------------------------------------------

    def _take_stock(self, now: float) -> Room:
        if self._room is None:
            self._room = survey(self._residency, self._queue.groups.keys(), now)
            self._room.free -= self._spoken_for
        return self._room

    def _delays(self, head: Group, taken_nbytes: int, room: Room) -> bool:
        missing = self._residency.models[head.model].need_nbytes - room.reachable
        return delays(missing, taken_nbytes, room.releases)

    def _wake(self, at: float, now: float) -> None:
        if now < at < self._wake_at:
            self._wake_at = at

    def _refuse_impatient(self, group: Group, now: float) -> None:
        blocked_for_good: bool | None = None
        for ticket in list(group.impatient.values()):
            if ticket.patience.fails_when_blocked:
                if blocked_for_good is None:
                    blocked_for_good = self.is_blocked_for_good(self._residency.models[group.model], now)
                if not blocked_for_good:
                    continue
            self._refuse(ticket, self.no_room(self._residency.models[group.model], now), now)

    def probe(self, model: Model, *, preempts: bool, reload: bool, now: float) -> Probe:
        """Whether a load would fit now, and what would have to leave; changes nothing. A `reload` that does not fit
        beside the loaded generation takes that one's room, once its requests have ended."""
        if model.state is ModelState.LOADING or (model.state is ModelState.LOADED and not reload):
            return Probe(fits=True)
        room = survey(self._residency, self._queue.groups.keys(), now)
        missing = model.need_nbytes - room.free - room.coming
        candidates = [victim for victim in room.idle if victim.instance is not model.current]
        if preempts:
            busy = [victim for victim in [*room.busy, *room.draining] if victim.instance is not model.current]
            able = [victim for victim in busy if preemptible_at(victim.instance, model.name, now) <= now]
            candidates += sorted(able, key=cost)
        victims = smallest_set(missing, candidates)
        if victims is None and model.state is ModelState.LOADED:
            missing -= self._residency.nbytes(model.current)
            victims = smallest_set(missing, candidates)
        if victims is not None and model.need_nbytes <= self._residency.ledger.limit_nbytes:
            return Probe(fits=True, evicted=tuple(victim.instance.name for victim in victims))
        lacking = missing - sum(victim.nbytes for victim in candidates)
        return Probe(fits=False, missing_nbytes=max(lacking, 0), blocking=tuple(sorted(self.blocking(model, now))))

    def is_blocked_for_good(self, model: Model, now: float) -> bool:
        """Whether no preemption could ever make room: pinned models and requests that nobody may interrupt."""
        room = self._take_stock(now)
        own = model.current
        own_nbytes = self._residency.nbytes(own) if is_immovable(own, model) else 0
        return self._residency.ledger.limit_nbytes - room.immovable_nbytes + own_nbytes < model.need_nbytes

    def no_room(self, model: Model, now: float) -> InferdError:
        """CAPACITY_EXHAUSTED with what stands in the way."""
        ledger = self._residency.ledger
        return capacity_exhausted(
            model.name, self.blocking(model, now), model.need_nbytes, ledger.used_nbytes, ledger.limit_nbytes
        )

    def blocking(self, model: Model, now: float) -> set[str]:
        """The models in the way of this one, never none: those that are charged and can't be evicted now, and those
        that what is leaving was promised to; else those that wait for the rest; else its own older instance."""
        charged = {i.name for i in self._residency.open.values() if not self._is_evictable(i, now)}
        names = (charged | self._residency.claims.keys()) - {model.name}
        return names or self._queue.groups.keys() - {model.name} or {model.name}

    def _is_evictable(self, instance: Instance, now: float) -> bool:
        if instance.state is not ModelState.LOADED or instance.leases or self._residency.models[instance.name].pinned:
            return False
        return instance.loaded_at + self._residency.limits.min_residency_seconds <= now


def _evictions(model: Model, room: Room) -> list[Victim] | None:
    """The idle instances that have to go for a model; None if all of them are not enough."""
    missing = model.need_nbytes - room.free - room.coming
    idle = room.idle
    if model.current.state is ModelState.LOADED:
        idle = [victim for victim in idle if victim.instance is not model.current]
    return smallest_set(missing, idle)
