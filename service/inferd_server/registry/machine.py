"""The registry's decisions: inputs in, effects out. No await, no clock, no log, no thread.

`handle` takes one input and the time, changes the state, and returns the effects to carry out, in order. It settles:
handling `Tick` again at the same time yields no effects. `next_wake` is the next moment at which a tick can change
something.
"""

import math
from collections.abc import Iterable
from typing import assert_never

from inferd_server.core.errors import (
    InferdError,
    drain_timeout,
    model_not_found,
    model_not_loaded,
    model_too_large,
    model_unloaded,
    wait_timeout,
)
from inferd_server.core.generation import WaitState
from inferd_server.core.model import ContentionPolicy, ModelEntry, ModelState, Strategy

from . import inputs
from .deadlines import Deadlines, DrainDeadline, IdleDeadline, LoadDeadline, TicketDeadline
from .effects import AnswerLoad, Effect, Grant, Refuse, StartLoad
from .instances import Cause, EngineLife, Instance, Model
from .lease import LeaseRecord, LeaseRequest
from .loads import Loads
from .placement import Placement, Probe
from .policy import RegistryLimits, patience
from .residency import Residency, new_model
from .tickets import Group, LoadOrder, Outlook, Ticket, TicketQueue
from .unloading import Unloading


class Machine:
    """Which models are in memory, and who gets a lease."""

    def __init__(self, entries: Iterable[ModelEntry], limits: RegistryLimits) -> None:
        self.limits = limits
        self.residency = Residency(entries, limits)
        self.queue = TicketQueue()
        self.placement = Placement(self.residency, self.queue, self._refuse)
        self.unloading = Unloading(self.residency, self.queue, self._refuse)
        self._leases: dict[int, Instance] = {}
        self._deadlines = Deadlines(self.residency, self.queue, self.unloading)
        self._loads = Loads(self.residency, self.queue, self.unloading, self._serve, self._refuse)
        self._ended: InferdError | None = None  # for those who would wait
        self._is_closed = False
        self._plan_at = math.inf
        self._fresh: list[str] = []  # models whose first ticket came with this input

    # --- the surface ---------------------------------------------------------------------------------------------

    def handle(self, happening: inputs.Input, now: float) -> list[Effect]:
        """Take one input at time `now` (never before an earlier one); returns the effects, in order."""
        self._meet_deadlines(now)
        self._dispatch(happening, now)
        self._meet_deadlines(now)  # that the input itself has set
        self._settle(now)
        effects, self.residency.effects = self.residency.effects, []
        for effect in effects:
            if isinstance(effect, StartLoad):
                self._deadlines.watch_load(effect.name, effect.generation, now)
        return effects

    def next_wake(self) -> float:
        """When a Tick is due; infinite for never."""
        return min(self._deadlines.next_at(), self._plan_at)

    def probe(self, name: str, policy: ContentionPolicy, now: float, *, reload: bool = False) -> Probe:
        """What loading a model would take now; changes nothing."""
        preempts = policy.strategy is Strategy.PREEMPT
        return self.placement.probe(self.residency.models[name], preempts=preempts, reload=reload, now=now)

    def has_ended(self) -> bool:
        """Whether no engine holds memory any more, but those whose end can't be proved."""
        return all(instance.engine is EngineLife.LOST for instance in self.residency.open.values())

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
        if ticket.is_interrupted:
            return WaitState.PREEMPTED
        if self.residency.models[ticket.model].is_loading:
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
                self._loads.finish_check(happening, now)
            case inputs.LoadFinished():
                self._loads.finish(happening, now)
            case inputs.LoadFailed():
                self._loads.fail(happening, now)
            case inputs.UnloadWanted():
                self._want_unload(happening, now)
            case inputs.UnloadFinished():
                self._loads.finish_unload(happening, now)
            case inputs.UnloadFailed():
                self._loads.fail_unload(happening, now)
            case inputs.Died():
                self._loads.die(happening, now)
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
        self.residency.is_unsettled = False  # to be wanted changes no plan

    def _plan(self, now: float) -> None:
        self._serve_returned(now)
        while self.residency.is_unsettled or self._plan_at <= now:
            self.residency.is_unsettled = False
            self._plan_at = self.placement.plan(now) if len(self.queue) else math.inf
            self._serve_returned(now)

    def _serve_returned(self, now: float) -> None:
        """Models that serve again grant their tickets."""
        while self.residency.returned:
            model = self.residency.models[self.residency.returned.pop()]
            if model.state is not ModelState.LOADED:
                continue
            self._serve(model, now)
            if self.queue.waiting(model.name):
                self.residency.want(model, now)  # a reload

    # --- tickets -------------------------------------------------------------------------------------------------

    def _ask(self, ask: inputs.Ask, now: float) -> None:
        request = ask.request
        model = self._known(request.model)
        if model is None:
            self._refuse_number(ask.ticket, self._unknown(request.model))
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
        if self._ended is not None and (self._is_closed or not request.interrupted):
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
        self._deadlines.watch_ticket(ticket)
        if model.state in (ModelState.UNLOADED, ModelState.FAILED) or ticket.wants_reload:
            self._fresh.append(model.name)
        if is_news:
            self.residency.is_unsettled = True
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
        self.residency.is_unsettled = True

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
        waited = now - asked_at
        self.residency.effects.append(
            Grant(number, *instance.key, instance.entry, record, waited, min(loading, waited))
        )

    def _serve(self, model: Model, now: float) -> None:
        """Answer every ticket that a LOADED model satisfies, in their order."""
        group = self.queue.groups.get(model.name)
        if group is not None:
            self._answer_group(model, group, now)
        model.evicted.clear()
        self._deadlines.watch_idleness(model.current)

    def _answer_group(self, model: Model, group: Group, now: float) -> None:
        last = self.unloading.last_ticket_to_serve(model)
        instance = model.current
        for ticket in group.in_order():
            order = ticket.order
            if ticket.id > last or (order and order.min_generation > instance.generation):
                self._deadlines.watch_ticket(ticket)  # its clock runs again
                continue
            if ticket.request is not None:
                self._grant(ticket.id, instance, ticket.request, ticket.arrived_at, now)
            elif order is not None:
                self._answer_load(model, ticket.id, order, ticket.arrived_at)
            self.queue.remove(ticket)
        if model.name not in self.queue.groups:
            self.residency.unwant(model, now)

    def _release(self, lease: int, now: float) -> None:
        instance = self._leases.pop(lease, None)
        if instance is None:
            return
        self.residency.take_back(instance, lease, now)
        self._deadlines.watch_idleness(instance)

    # --- loads ---------------------------------------------------------------------------------------------------

    def _want_load(self, wanted: inputs.LoadWanted, now: float) -> None:
        model = self._known(wanted.name)
        if model is None:
            self._refuse_number(wanted.ticket, self._unknown(wanted.name))
            return
        order = LoadOrder(self._generation_wanted(model) if wanted.reload else 0, wanted.pin, wanted.detached)
        if model.state is ModelState.LOADED and order.min_generation == 0:
            self._answer_load(model, wanted.ticket, order, None)
            return
        error = self._ended or self._too_large(model)
        if error is not None:
            self._refuse_number(wanted.ticket, error)
            return
        ticket = Ticket(wanted.ticket, model.name, now, 0, patience(wanted.policy, now), order=order)
        if wanted.detached:
            self._take_place(ticket)
        self._enqueue(model, ticket, now)

    def _take_place(self, ticket: Ticket) -> None:
        """A detached load stands where an earlier one stood, and asks for what both did: no client bounds their number,
        and none waits for the earlier one's answer."""
        group = self.queue.groups.get(ticket.model)
        earlier = None if group is None else group.detached
        if earlier is None:
            return
        assert earlier.order is not None
        assert ticket.order is not None
        self.queue.remove(earlier)
        ticket.arrived_at = earlier.arrived_at
        ticket.patience = ticket.patience.joined(earlier.patience)
        ticket.order = ticket.order.after(earlier.order)

    def _generation_wanted(self, model: Model) -> int:
        """The generation that a reload asks for; 0 if the next load, or the one under way, will do."""
        if model.state in (ModelState.UNLOADED, ModelState.QUEUED, ModelState.LOADING, ModelState.FAILED):
            return 0
        return model.current.generation + 1

    def _answer_load(self, model: Model, number: int, order: LoadOrder, asked_at: float | None) -> None:
        if order.pin is not None:
            model.pinned = order.pin
            self.residency.tell(model.name)
            self._deadlines.watch_idleness(model.current)
            self.residency.is_unsettled = True
        loaded_for_it = asked_at is not None and asked_at <= model.current.loaded_at
        seconds = model.current.load_seconds if loaded_for_it else None
        self.residency.effects.append(AnswerLoad(number, tuple(dict.fromkeys(model.evicted)), seconds))

    # --- ends ----------------------------------------------------------------------------------------------------

    def _want_unload(self, wanted: inputs.UnloadWanted, now: float) -> None:
        if wanted.name not in self.residency.models:
            self._refuse_number(wanted.order, self._unknown(wanted.name))
            return
        self.residency.is_unsettled = True
        if self.unloading.want(wanted, now) and wanted.drain_seconds is not None:
            self._deadlines.watch_drain(wanted.name, wanted.order, now + wanted.drain_seconds)

    def _end_waiting(self, error: InferdError, now: float) -> None:
        """An interrupted request counts as running: it may still come back."""
        self._ended = error
        for ticket in list(self.queue.tickets.values()):
            if not ticket.is_interrupted:
                self._refuse(ticket, error, now)

    def _close(self, error: InferdError, now: float) -> None:
        self._ended, self._is_closed = error, True
        for ticket in list(self.queue.tickets.values()):
            self._refuse(ticket, error, now)
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
            known.removed = False
            self.residency.change_entry(known, entry, now)
            self._deadlines.watch_idleness(known.current)
            self.residency.tell(name)
        self.residency.is_unsettled = True

    def _unknown(self, name: str) -> InferdError:
        return model_not_found(name, (other.name for other in self.residency.models.values() if not other.removed))

    def _remove_model(self, model: Model, now: float) -> None:
        model.removed = True
        for ticket in list(self.queue.groups[model.name].tickets.values()) if self.queue.waiting(model.name) else ():
            # One that was interrupted while it ran can't go on: what it ran on is gone.
            gone = model_unloaded(model.name) if ticket.is_interrupted else self._unknown(model.name)
            self._refuse(ticket, gone, now)
        for instance in model.instances():
            self.unloading.retire(instance, now)
        self.residency.forget_if_removed(model)

    # --- deadlines -----------------------------------------------------------------------------------------------

    def _meet_deadlines(self, now: float) -> None:
        while (deadline := self._deadlines.due(now)) is not None:
            match deadline:
                case TicketDeadline(number):
                    self._time_out(self.queue.tickets[number], now)
                case LoadDeadline(name, generation):
                    self._loads.time_out(name, generation, now)
                case IdleDeadline():
                    instance = self._deadlines.is_idle_for_long(deadline, now)
                    if instance is not None:
                        self.residency.counters.idle_unloads += 1
                        self.residency.drain(instance, Cause.IDLE, now)
                case DrainDeadline(name, order):
                    self.unloading.give_up(name, order, drain_timeout, now)

    def _time_out(self, ticket: Ticket, now: float) -> None:
        waited_seconds = now - ticket.arrived_at
        self._refuse(ticket, wait_timeout(ticket.model, waited_seconds, self.queue.position(ticket)), now)
