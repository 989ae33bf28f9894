"""The registry's decisions: inputs in, effects out. No await, no clock, no log, no thread.

`handle` takes one input and the time, changes the state, and returns the effects to carry out, in order. It settles:
handling `Tick` again at the same time yields no effects. `next_wake` is the next moment at which a tick can change
something.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import assert_never

from inferd_server.core.errors import (
    InferdError,
    drain_timeout,
    load_timeout,
    model_load_failed,
    model_not_found,
    model_not_loaded,
    model_too_large,
    wait_timeout,
)
from inferd_server.core.generation import WaitState
from inferd_server.core.model import ContentionPolicy, ModelEntry, ModelState, Strategy

from . import inputs
from .alarms import Alarms
from .effects import AbandonLoad, AnswerLoad, Effect, Grant, Refuse, StartLoad
from .instances import Cause, Check, EngineLife, Instance, Model
from .lease import LeaseRecord, LeaseRequest
from .placement import Placement, Probe
from .planner import smallest_set
from .policy import RegistryLimits, patience
from .residency import Residency, new_model
from .room import survey, unowned_nbytes
from .state import Event
from .tickets import Group, LoadOrder, Outlook, Ticket, TicketQueue
from .unloading import Unloading


@dataclass(frozen=True, slots=True)
class TicketAlarm:
    """A ticket's patience ends."""

    ticket: int


@dataclass(frozen=True, slots=True)
class InstanceAlarm:
    """An instance's load takes too long, or it has been idle for long."""

    name: str
    generation: int
    state: ModelState


@dataclass(frozen=True, slots=True)
class DrainAlarm:
    """The drain of an UnloadModel takes too long."""

    name: str
    order: int


class Machine:
    """Which models are in memory, and who gets a lease."""

    def __init__(self, entries: Iterable[ModelEntry], limits: RegistryLimits) -> None:
        self.limits = limits
        self.residency = Residency(entries, limits)
        self.queue = TicketQueue()
        self.placement = Placement(self.residency, self.queue, self._refuse)
        self.unloading = Unloading(self.residency, self.queue, self._refuse)
        self._leases: dict[int, Instance] = {}
        self._alarms = Alarms(self._is_live)
        self._ended: InferdError | None = None
        self._plan_needed = False
        self._plan_at = math.inf
        self._fresh: list[str] = []  # models whose first ticket came with this input

    # --- the surface ---------------------------------------------------------------------------------------------

    def handle(self, happening: inputs.Input, now: float) -> list[Effect]:
        """Take one input at time `now` (never before an earlier one); returns the effects, in order."""
        self._ring(now)
        self._dispatch(happening, now)
        self._ring(now)  # what the input itself made due
        self._settle(now)
        effects, self.residency.effects = self.residency.effects, []
        for effect in effects:
            if isinstance(effect, StartLoad):
                alarm = InstanceAlarm(effect.name, effect.generation, ModelState.LOADING)
                self._alarms.set(now + self.limits.load_timeout_seconds, alarm)
        return effects

    def next_wake(self) -> float:
        """When a Tick is due; infinite for never."""
        return min(self._alarms.next_at(), self._plan_at)

    def probe(self, name: str, policy: ContentionPolicy, now: float) -> Probe:
        """What loading a model would take now; changes nothing."""
        preempts = policy.strategy is Strategy.PREEMPT
        return self.placement.probe(self.residency.models[name], preempts=preempts, now=now)

    def admits(self, name: str) -> bool:
        """Whether a lease on the model would be granted at once."""
        model = self.residency.models.get(name)
        return model is not None and model.state is ModelState.LOADED

    def waiting(self, number: int) -> tuple[WaitState, int] | None:
        """What a ticket waits for, and how many stand before it; None once it is answered."""
        ticket = self.queue.tickets.get(number)
        if ticket is None:
            return None
        return self._wait_state(ticket), self.queue.position(ticket)

    def _wait_state(self, ticket: Ticket) -> WaitState:
        if ticket.request is not None and ticket.request.interrupted:
            return WaitState.PREEMPTED
        if self._is_loading(ticket):
            return WaitState.LOADING
        outlook = self.queue.groups[ticket.model].outlook
        making_room = ticket.model in self.residency.claims or outlook is Outlook.COMING
        return WaitState.EVICTING if making_room else WaitState.QUEUED

    def _dispatch(self, happening: inputs.Input, now: float) -> None:  # noqa: PLR0912 - one line for each input
        match happening:
            case inputs.Ask():
                self._ask(happening, now)
            case inputs.Released():
                self._release(happening.lease, now)
            case inputs.Cancel():
                self._cancel(happening.ticket, now)
            case inputs.LoadWanted():
                self._want_load(happening, now)
            case inputs.CheckFinished():
                self._finish_check(happening, now)
            case inputs.LoadFinished():
                self._finish_load(happening, now)
            case inputs.LoadFailed():
                self._fail_load(happening, now)
            case inputs.UnloadWanted():
                self._want_unload(happening, now)
            case inputs.UnloadFinished():
                self._finish_unload(happening, now)
            case inputs.UnloadFailed():
                self._fail_unload(happening, now)
            case inputs.Died():
                self._die(happening, now)
            case inputs.EntriesReplaced():
                self._replace(happening, now)
            case inputs.WaitingEnded():
                self._end_waiting(happening.error, now)
            case inputs.Closed():
                self._close(happening.error, now)
            case inputs.Tick():
                pass
            case _:
                assert_never(happening)

    def _settle(self, now: float) -> None:
        self._plan(now)
        for name in self._fresh:
            if self.queue.waiting(name):
                self.residency.want(self.residency.models[name], now)
        self._fresh.clear()

    def _plan(self, now: float) -> None:
        self._serve_returned(now)
        while self._plan_needed or self._plan_at <= now:
            self._plan_needed = False
            self._plan_at = self.placement.plan(now) if len(self.queue) else math.inf
            self._serve_returned(now)

    def _serve_returned(self, now: float) -> None:
        """Models that serve again grant their tickets."""
        while self.residency.returned:
            model = self.residency.models[self.residency.returned.pop()]
            if model.state is not ModelState.LOADED:
                continue
            self._serve(model, now)
            self._watch_idleness(model.current)
            if self.queue.waiting(model.name):
                self.residency.want(model, now)  # a reload

    # --- tickets -------------------------------------------------------------------------------------------------

    def _ask(self, ask: inputs.Ask, now: float) -> None:
        request = ask.request
        model = self._known(request.model)
        if model is None:
            self._refuse_number(ask.ticket, model_not_found(request.model, self.residency.models))
            return
        if model.state is ModelState.LOADED:
            self._grant(ask.ticket, model.current, request, now, now)
            return
        error = self._refusal(model, request, now)
        if error is not None:
            self._refuse_number(ask.ticket, error)
            return
        times = patience(request.policy, now, interrupted=request.interrupted)
        self._enqueue(model, Ticket(ask.ticket, model.name, now, request.priority, times, request), now)

    def _known(self, name: str) -> Model | None:
        model = self.residency.models.get(name)
        return None if model is None or model.removed else model

    def _refusal(self, model: Model, request: LeaseRequest, now: float) -> InferdError | None:
        if self._ended is not None:
            return self._ended
        if not request.load_if_needed and not request.interrupted:
            return model_not_loaded(model.name)
        failure = model.failure
        if model.state is ModelState.FAILED and failure is not None:
            lingers = model.current.engine is not EngineLife.ABSENT
            if lingers or now < failure.retry_at:
                return failure.error
        return self._too_large(model)

    def _too_large(self, model: Model) -> InferdError | None:
        if model.need_nbytes > self.limits.budget_nbytes:
            return model_too_large(model.name, model.need_nbytes, self.limits.budget_nbytes)
        return None

    def _enqueue(self, model: Model, ticket: Ticket, now: float) -> None:
        group = self.queue.groups.get(model.name)
        is_news = self._is_news(group, ticket, now)
        group = self.queue.add(ticket)
        self._alarms.set(ticket.patience.expires_at, TicketAlarm(ticket.id))
        if model.state in (ModelState.UNLOADED, ModelState.FAILED) or ticket.wants_reload:
            self._fresh.append(model.name)
        if is_news:
            self._plan_needed = True
            self._plan(now)
        elif ticket.patience.preempts_at > now:
            self._plan_at = min(self._plan_at, ticket.patience.preempts_at)
        if ticket.id in self.queue.tickets:
            self.placement.look_at(group, now)

    def _is_news(self, group: Group | None, ticket: Ticket, now: float) -> bool:
        """Whether a ticket can change any plan: not if it stands behind others of its model and brings nothing new."""
        if group is None or ticket.wants_reload or ticket.place < group.head:
            return True
        return ticket.patience.preempts_at <= now < group.preempts_at

    def _cancel(self, number: int, now: float) -> None:
        ticket = self.queue.tickets.get(number)
        if ticket is not None:
            self._remove(ticket, now)

    def _remove(self, ticket: Ticket, now: float) -> None:
        self.queue.remove(ticket)
        if ticket.model not in self.queue.groups:
            self.residency.unwant(self.residency.models[ticket.model], now)
            self.unloading.give_up_on_load(self.residency.models[ticket.model], now)
        self._plan_needed = True

    def _refuse(self, ticket: Ticket, error: InferdError, now: float) -> None:
        self._refuse_number(ticket.id, error)
        self._remove(ticket, now)

    def _refuse_number(self, number: int, error: InferdError) -> None:
        self.residency.counters.refusals += 1
        self.residency.effects.append(Refuse(number, error.with_facts()))

    # --- granting ------------------------------------------------------------------------------------------------

    def _grant(self, number: int, instance: Instance, request: LeaseRequest, asked_at: float, now: float) -> None:
        record = LeaseRecord(number, request, request.preemptions)
        self.residency.lend(instance, record, now)
        self._leases[number] = instance
        loading = max(0.0, min(now, instance.loaded_at) - max(asked_at, instance.load_started_at))
        self.residency.effects.append(
            Grant(number, instance.name, instance.generation, record, now - asked_at, min(loading, now - asked_at))
        )

    def _serve(self, model: Model, now: float) -> None:
        """Answer every ticket that a LOADED model satisfies, in their order."""
        group = self.queue.groups.get(model.name)
        if group is None:
            return
        last = self.unloading.last_ticket_to_serve(model)
        instance = model.current
        for ticket in group.in_order():
            order = ticket.order
            if ticket.id > last or (order and order.min_generation > instance.generation):
                self._alarms.set(ticket.patience.expires_at, TicketAlarm(ticket.id))  # its clock runs again
                continue
            if ticket.request is not None:
                self._grant(ticket.id, instance, ticket.request, ticket.arrived_at, now)
            elif order is not None:
                self._answer_load(model, ticket.id, order, ticket.arrived_at)
            self.queue.remove(ticket)
        model.evicted.clear()
        if model.name not in self.queue.groups:
            self.residency.unwant(model, now)
        self._plan_needed = True

    def _release(self, lease: int, now: float) -> None:
        instance = self._leases.pop(lease, None)
        if instance is None:
            return
        unpreemptible = instance.unpreemptible
        self.residency.take_back(instance, lease, now)
        if not instance.leases or instance.unpreemptible != unpreemptible:
            self._plan_needed = True
        self._watch_idleness(instance)

    # --- loads ---------------------------------------------------------------------------------------------------

    def _want_load(self, wanted: inputs.LoadWanted, now: float) -> None:
        model = self._known(wanted.name)
        if model is None:
            self._refuse_number(wanted.ticket, model_not_found(wanted.name, self.residency.models))
            return
        order = LoadOrder(self._generation_wanted(model) if wanted.reload else 0, wanted.pin)
        if model.state is ModelState.LOADED and order.min_generation == 0:
            self._answer_load(model, wanted.ticket, order, None)
            return
        error = self._ended or self._too_large(model)
        if error is not None:
            self._refuse_number(wanted.ticket, error)
            return
        times = patience(wanted.policy, now)
        self._enqueue(model, Ticket(wanted.ticket, model.name, now, 0, times, order=order), now)

    def _generation_wanted(self, model: Model) -> int:
        """The generation that a reload asks for; 0 if the next load, or the one under way, will do."""
        if model.state in (ModelState.UNLOADED, ModelState.QUEUED, ModelState.LOADING, ModelState.FAILED):
            return 0
        return model.current.generation + 1

    def _answer_load(self, model: Model, number: int, order: LoadOrder, asked_at: float | None) -> None:
        if order.pin is not None:
            model.pinned = order.pin
            self.residency.tell(model.name)
            self._watch_idleness(model.current)
            self._plan_needed = True
        loaded_for_it = asked_at is not None and asked_at <= model.current.loaded_at
        seconds = model.current.load_seconds if loaded_for_it else None
        self.residency.effects.append(AnswerLoad(number, tuple(model.evicted), seconds))

    def _finish_check(self, finished: inputs.CheckFinished, now: float) -> None:
        model = self.residency.models.get(finished.name)
        if model is None or model.check is not Check.RUNNING or model.checks != finished.check:
            return
        self._plan_needed = True
        if finished.error is None:
            model.check = Check.PASSED
        elif model.state is ModelState.QUEUED:
            self.residency.fail(model.current, Event.CHECK_FAILED, finished.error, now)
            self._answer_failure(model, finished.error, now)
        else:
            self.residency.note_failure(model, 1, finished.error, now)
            self._answer_failure(model, finished.error, now, reloads_only=True)

    def _finish_load(self, finished: inputs.LoadFinished, now: float) -> None:
        instance = self.residency.find(finished.name, finished.generation)
        assert instance is not None
        instance.engine = EngineLife.OPEN
        instance.weights_nbytes = finished.weights_nbytes
        self._plan_needed = True
        if instance.state is not ModelState.LOADING:  # abandoned or timed out, and the load ended well all the same
            self.residency.close_engine(instance)
            return
        growth = finished.weights_nbytes - self.residency.nbytes(instance)
        if growth <= max(0, unowned_nbytes(self.residency)):
            self._admit(instance, now)
        elif not self._make_growing_room(instance, growth, now):
            error = model_too_large(instance.name, finished.weights_nbytes, self.limits.budget_nbytes)
            self._fail_instance(instance, error, now)
            self.residency.close_engine(instance)

    def _make_growing_room(self, instance: Instance, growth: int, now: float) -> bool:
        """The weights are larger than reserved: evict idle models for the rest, or leave everything as it is."""
        room = survey(self.residency, self.queue.groups.keys(), now)
        idle = [victim for victim in room.idle if victim.instance.state is ModelState.LOADED]
        victims = smallest_set(growth - room.free - room.coming, idle)
        if victims is None:
            return False
        instance.growing_nbytes = growth
        for victim in victims:
            self.residency.counters.evictions += 1
            self.residency.models[instance.name].evicted.append(victim.instance.name)
            self.residency.drain(victim.instance, Cause.RIVAL, now)
        return True

    def _admit(self, instance: Instance, now: float) -> None:
        model = self.residency.models[instance.name]
        self.residency.finish_load(instance, now)
        self._plan_needed = True
        self._serve(model, now)
        self.unloading.begin_waiting_drains(model, now)
        self._watch_idleness(instance)

    def _admit_grown(self, now: float) -> None:
        """Room came back: settle the loads that were larger than reserved."""
        for instance in list(self.residency.open.values()):
            growth = instance.growing_nbytes
            if growth and growth <= unowned_nbytes(self.residency) + growth:
                self._admit(instance, now)

    def _fail_load(self, failed: inputs.LoadFailed, now: float) -> None:
        instance = self.residency.find(failed.name, failed.generation)
        assert instance is not None
        if instance.state is ModelState.LOADING:
            error = failed.error or model_load_failed(failed.name, f"the load of model {failed.name!r} gave up")
            self._fail_instance(instance, error, now)
        self._end(instance, 0, now)

    def _fail_instance(self, instance: Instance, error: InferdError, now: float) -> None:
        """A load failed or an engine died: everyone who waits for the model hears why."""
        model = self.residency.models[instance.name]
        event = Event.LOAD_FAILED if instance.state is ModelState.LOADING else Event.DIED
        self.residency.fail(instance, event, error, now)
        if model.state is not ModelState.LOADING:  # else its successor is on the way
            self._answer_failure(model, error, now, reloads_only=model.state is not ModelState.FAILED)
        self.unloading.give_up_on_load(model, now)
        self._plan_needed = True

    def _answer_failure(self, model: Model, error: InferdError, now: float, *, reloads_only: bool = False) -> None:
        group = self.queue.groups.get(model.name)
        if group is None:
            return
        for ticket in group.in_order():
            if not reloads_only or ticket.wants_reload:
                self._refuse(ticket, error, now)

    def _die(self, died: inputs.Died, now: float) -> None:
        instance = self.residency.find(died.name, died.generation)
        if instance is None or instance.engine is not EngineLife.OPEN:
            return
        if instance.state in (ModelState.FAILED, ModelState.QUEUED):  # it has died before
            return
        if instance in self.residency.models[instance.name].retiring:
            self.residency.change(instance, Event.DIED, now)  # nobody waits for an older generation
        else:
            self._fail_instance(instance, died.error, now)
        if not instance.leases:
            self.residency.close_engine(instance)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _want_unload(self, wanted: inputs.UnloadWanted, now: float) -> None:
        if wanted.name not in self.residency.models:
            self._refuse_number(wanted.order, model_not_found(wanted.name, self.residency.models))
            return
        self._plan_needed = True
        if self.unloading.want(wanted, now) and wanted.drain_seconds is not None:
            self._alarms.set(now + wanted.drain_seconds, DrainAlarm(wanted.name, wanted.order))

    def _finish_unload(self, finished: inputs.UnloadFinished, now: float) -> None:
        instance = self.residency.find(finished.name, finished.generation)
        assert instance is not None
        self._end(instance, finished.freed_nbytes, now)

    def _fail_unload(self, failed: inputs.UnloadFailed, now: float) -> None:
        """An end that is not proved: the bytes stay charged and the model stays failed."""
        instance = self.residency.find(failed.name, failed.generation)
        assert instance is not None
        if instance.state is ModelState.UNLOADING:
            self.residency.fail(instance, Event.UNLOAD_FAILED, failed.error, now)
        model = self.residency.models[failed.name]
        if model.current is instance:
            self._answer_failure(model, failed.error, now)
        self.unloading.fail(model, failed.error)
        self._plan_needed = True

    def _end(self, instance: Instance, freed_nbytes: int, now: float) -> None:
        model = self.residency.models[instance.name]
        self.residency.end(instance, now)
        self.unloading.note_end(model, instance.generation, freed_nbytes, now)
        self._admit_grown(now)
        if model.state is ModelState.UNLOADED and self.queue.waiting(model.name):
            self.residency.want(model, now)
        self._forget_removed(model)
        self._plan_needed = True

    def _end_waiting(self, error: InferdError, now: float) -> None:
        self._ended = error
        for ticket in list(self.queue.tickets.values()):
            self._refuse(ticket, error, now)

    def _close(self, error: InferdError, now: float) -> None:
        self._end_waiting(error, now)
        for name in list(self.residency.claims):
            self.residency.drop_claim(name, now)
        for instance in list(self.residency.open.values()):
            self.unloading.force(instance, Cause.CLOSE, error, now)

    def _replace(self, replaced: inputs.EntriesReplaced, now: float) -> None:
        """A new configuration: changed models keep what is loaded until their next load, removed ones drain."""
        entries = {entry.name: entry for entry in replaced.entries}
        for name, model in list(self.residency.models.items()):
            if name not in entries:
                self._remove_model(model, now)
        for name, entry in entries.items():
            known = self.residency.models.get(name)
            if known is None:
                self.residency.models[name] = new_model(entry, now)
                self.residency.tell(name)
                continue
            if known.entry.pinned != entry.pinned:
                known.pinned = entry.pinned
            known.entry, known.removed = entry, False
            self._watch_idleness(known.current)
            self.residency.tell(name)
        self._plan_needed = True

    def _remove_model(self, model: Model, now: float) -> None:
        model.removed = True
        for ticket in list(self.queue.groups[model.name].tickets.values()) if self.queue.waiting(model.name) else ():
            self._refuse(ticket, model_not_found(model.name, self.residency.models), now)
        for instance in model.instances():
            self.unloading.retire(instance, now)
        self._forget_removed(model)

    def _forget_removed(self, model: Model) -> None:
        gone = all(instance.engine is EngineLife.ABSENT for instance in model.instances())
        if model.removed and gone:
            del self.residency.models[model.name]
            self.residency.forget(model)

    # --- alarms --------------------------------------------------------------------------------------------------

    def _watch_idleness(self, instance: Instance) -> None:
        seconds = self.residency.models[instance.name].entry.idle_unload_seconds
        if seconds > 0 and self._is_idle(instance) and not instance.idleness_watched:
            instance.idleness_watched = True
            self._alarms.set(
                max(instance.last_used_at + seconds, instance.loaded_at + self.limits.min_residency_seconds),
                InstanceAlarm(instance.name, instance.generation, ModelState.LOADED),
            )

    def _is_idle(self, instance: Instance) -> bool:
        model = self.residency.models[instance.name]
        return instance.state is ModelState.LOADED and not instance.leases and not model.pinned

    def _is_live(self, subject: Hashable) -> bool:
        if isinstance(subject, TicketAlarm):
            ticket = self.queue.tickets.get(subject.ticket)
            return ticket is not None and not self._is_loading(ticket)
        if isinstance(subject, InstanceAlarm):
            instance = self.residency.find(subject.name, subject.generation)
            return instance is not None and instance.state is subject.state
        assert isinstance(subject, DrainAlarm)
        return self.unloading.find(subject.name, subject.order) is not None

    def _is_loading(self, ticket: Ticket) -> bool:
        """Whether a ticket has its room: wait_timeout bounds the wait for room, load_timeout the load."""
        model = self.residency.models[ticket.model]
        return model.state is ModelState.LOADING or model.successor is not None

    def _ring(self, now: float) -> None:
        while (subject := self._alarms.due(now)) is not None:
            if isinstance(subject, TicketAlarm):
                ticket = self.queue.tickets[subject.ticket]
                waited = now - ticket.arrived_at
                self._refuse(ticket, wait_timeout(ticket.model, waited, self.queue.position(ticket)), now)
            elif isinstance(subject, InstanceAlarm):
                self._ring_instance(subject, now)
            elif isinstance(subject, DrainAlarm):
                self._plan_needed = True
                self.unloading.give_up(subject.name, subject.order, drain_timeout, now)

    def _ring_instance(self, alarm: InstanceAlarm, now: float) -> None:
        instance = self.residency.find(alarm.name, alarm.generation)
        assert instance is not None
        if alarm.state is ModelState.LOADING:
            self._time_out(instance, now)
            return
        instance.idleness_watched = False
        model = self.residency.models[alarm.name]
        seconds = model.entry.idle_unload_seconds
        if not self._is_idle(instance) or seconds <= 0 or model.successor is not None:
            return
        if now < max(instance.last_used_at + seconds, instance.loaded_at + self.limits.min_residency_seconds):
            self._watch_idleness(instance)  # it was used in between
            return
        self.residency.counters.idle_unloads += 1
        self.residency.drain(instance, Cause.IDLE, now)

    def _time_out(self, instance: Instance, now: float) -> None:
        """A load takes too long: its waiters hear so; its bytes stay charged until it has really ended."""
        self._fail_instance(instance, load_timeout(instance.name, self.limits.load_timeout_seconds), now)
        if instance.engine is EngineLife.OPEN:  # it was waiting for room to grow
            self.residency.close_engine(instance)
        else:
            self.residency.effects.append(AbandonLoad(*instance.key))
