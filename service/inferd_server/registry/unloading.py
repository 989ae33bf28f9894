"""Unload orders: UnloadModel in its three modes, and what ends an instance for good."""

import math
from collections.abc import Callable

from inferd_server.core.errors import InferdError, model_busy, model_pinned, model_unloaded, queue_full
from inferd_server.core.model import ModelState, UnloadMode

from .effects import AnswerUnload, Refuse
from .inputs import UnloadWanted
from .instances import Cause, EngineLife, Instance, Model, UnloadOrder
from .residency import Residency
from .state import Event
from .tickets import Ticket, TicketQueue

_ON_THE_WAY_IN = (ModelState.QUEUED, ModelState.LOADING)

MAX_ORDERS = 256
"""Open orders of one mode for one model. An order outlives its caller: callers that come and go would pile them up."""


class Unloading:
    """Takes unload orders and answers each when the memory of its generations is back."""

    def __init__(
        self, residency: Residency, queue: TicketQueue, refuse: Callable[[Ticket, InferdError, float], None]
    ) -> None:
        self._residency = residency
        self._queue = queue
        self._refuse = refuse

    def find(self, name: str, order: int) -> UnloadOrder | None:
        """An order that is not done."""
        model = self._residency.models.get(name)
        return next((known for known in model.orders if known.id == order), None) if model else None

    def want(self, wanted: UnloadWanted, now: float) -> bool:
        """Take an order; whether it is still open afterwards."""
        model = self._residency.models[wanted.name]
        if wanted.mode is UnloadMode.IF_IDLE and (error := self._objection(model)):
            self._residency.effects.append(Refuse(wanted.order, error))
            return False
        if sum(order.mode is wanted.mode for order in model.orders) >= MAX_ORDERS:
            self._residency.effects.append(Refuse(wanted.order, queue_full(model.name, MAX_ORDERS)))
            return False
        order = UnloadOrder(wanted.order, wanted.mode, _generations(model), last_ticket=wanted.order)
        model.orders.append(order)
        if wanted.mode is UnloadMode.FORCE:
            self._force_model(model, now)
        elif model.state in _ON_THE_WAY_IN and wanted.mode is UnloadMode.DRAIN:
            order.waits_for_load = True
            self._retire_successor(model, now)
        else:
            self._retire_successor(model, now)
            for instance in model.instances():
                self.retire(instance, now)
        self._finish(model, now)
        return order in model.orders

    def _objection(self, model: Model) -> InferdError | None:
        if model.pinned and model.state not in (ModelState.UNLOADED, ModelState.FAILED):
            return model_pinned(model.name)
        running = model.running()
        if running or model.state in _ON_THE_WAY_IN or model.successor is not None:
            return model_busy(model.name, running)
        return None

    def _force_model(self, model: Model, now: float) -> None:
        error = model_unloaded(model.name)
        if model.name in self._queue.groups:
            for ticket in self._queue.groups[model.name].in_order():
                self._refuse(ticket, error, now)
        self._stop_waiting_for_load(model)
        for instance in model.instances():
            if instance.engine is not EngineLife.ABSENT:
                self.force(instance, Cause.UNLOAD, error, now)

    def _retire_successor(self, model: Model, now: float) -> None:
        """The model is not to stay: a reload under way is given up."""
        if model.name in self._queue.groups and model.state not in _ON_THE_WAY_IN:
            for ticket in self._queue.groups[model.name].in_order():
                if ticket.wants_reload:
                    self._refuse(ticket, model_unloaded(model.name), now)
        if model.successor is not None:
            self._residency.abandon(model.successor, Cause.UNLOAD, now)

    def force(self, instance: Instance, cause: Cause, error: InferdError, now: float) -> None:
        """End an instance now, its requests with an error."""
        if instance.state is ModelState.LOADING:
            self._residency.abandon(instance, cause, now)
        elif instance.state in (ModelState.LOADED, ModelState.DRAINING, ModelState.PREEMPTING):
            self._residency.abort(instance, cause, error, now)

    def retire(self, instance: Instance, now: float) -> None:
        """Let an instance go after its requests."""
        if instance.state is ModelState.LOADED:
            self._residency.drain(instance, Cause.UNLOAD, now)
        elif instance.state is ModelState.LOADING:
            self._residency.abandon(instance, Cause.UNLOAD, now)

    # --- what becomes of an order --------------------------------------------------------------------------------

    def last_ticket_to_serve(self, model: Model) -> float:
        """Tickets that came after an order to drain wait for the next load."""
        return min((order.last_ticket for order in model.orders if order.waits_for_load), default=math.inf)

    def begin_waiting_drains(self, model: Model, now: float) -> None:
        """The tickets of their time are served: orders that waited for the load begin to drain."""
        if self._stop_waiting_for_load(model):
            self.retire(model.current, now)

    def _stop_waiting_for_load(self, model: Model) -> bool:
        waiting = [order for order in model.orders if order.waits_for_load]
        for order in waiting:
            order.waits_for_load = False
            order.generations = _generations(model)
        return bool(waiting)

    def give_up_on_load(self, model: Model, now: float) -> None:
        """The load that orders waited for will not come: what is left of the model is what they end."""
        if model.state in _ON_THE_WAY_IN:
            return
        self._stop_waiting_for_load(model)
        self._finish(model, now)

    def note_end(self, model: Model, generation: int, freed_nbytes: int, now: float) -> None:
        """A generation has ended, and so many bytes came back."""
        if model.state not in _ON_THE_WAY_IN:
            self._stop_waiting_for_load(model)
        for order in model.orders:
            if generation in order.generations:
                order.generations.discard(generation)
                order.freed_nbytes += freed_nbytes
        self._finish(model, now)

    def _finish(self, model: Model, now: float) -> None:
        done = [order for order in model.orders if not order.generations and not order.waits_for_load]
        if done and model.state is ModelState.FAILED and model.current.engine is EngineLife.ABSENT:
            model.failure = None
            self._residency.change(model.current, Event.FORGOTTEN, now)
        for order in done:
            model.orders.remove(order)
            self._residency.effects.append(AnswerUnload(order.id, order.freed_nbytes))

    def give_up(self, name: str, number: int, error: Callable[[str, int], InferdError], now: float) -> None:
        """An order's time is over: the model serves again, unless its end has begun or others want it too."""
        order = self.find(name, number)
        assert order is not None
        model = self._residency.models[name]
        if model.state is ModelState.UNLOADING:
            return
        model.orders.remove(order)
        self._residency.effects.append(Refuse(number, error(name, model.running())))
        current = model.current
        if current.state is ModelState.DRAINING and current.cause is Cause.UNLOAD and not model.orders:
            self._residency.return_to_service(current, now)

    def fail(self, model: Model, error: InferdError) -> None:
        """An engine's end could not be proved: orders end with the reason."""
        for order in model.orders:
            self._residency.effects.append(Refuse(order.id, error))
        model.orders.clear()


def _generations(model: Model) -> set[int]:
    return {instance.generation for instance in model.instances() if instance.engine is not EngineLife.ABSENT}
