"""What becomes of checks, loads and engines: the inputs that the shell's slow work comes back with."""

from collections.abc import Callable

from inferd_server.core.errors import InferdError, load_timeout, model_load_failed, model_too_large
from inferd_server.core.model import ModelState

from . import inputs
from .effects import AbandonLoad
from .instances import Cause, Check, EngineLife, Instance, Model
from .planner import smallest_set
from .residency import Residency
from .room import survey, unowned_nbytes
from .state import Event
from .tickets import Ticket, TicketQueue
from .unloading import Unloading


class Loads:
    """Turns ends of slow work into changes. `serve` answers the tickets of a LOADED model; `refuse` ends one."""

    def __init__(
        self,
        residency: Residency,
        queue: TicketQueue,
        unloading: Unloading,
        serve: Callable[[Model, float], None],
        refuse: Callable[[Ticket, InferdError, float], None],
    ) -> None:
        self._residency = residency
        self._queue = queue
        self._unloading = unloading
        self._serve = serve
        self._refuse = refuse

    def finish_check(self, finished: inputs.CheckFinished, now: float) -> None:
        """The files are as they should be, or the model fails before anything was evicted for it."""
        model = self._residency.models.get(finished.name)
        if model is None or model.check is not Check.RUNNING or model.checks != finished.check:
            return
        error = finished.error or self._measure(model, finished.files_nbytes or 0)
        if error is None:
            self._residency.note_facts(model, finished.entry)
            self._residency.pass_check(model)
        elif model.state is ModelState.QUEUED:
            self._residency.fail(model.current, Event.CHECK_FAILED, error, now)
            self._answer_failure(model, error, now)
        else:
            self._residency.note_failure(model, 1, error, now)
            self._answer_failure(model, error, now, reloads_only=True)

    def _measure(self, model: Model, files_nbytes: int) -> InferdError | None:
        """Take in how large a model's files are now; 0: as before, for all we know."""
        limit_nbytes = self._residency.limits.budget_nbytes
        if files_nbytes > limit_nbytes and not model.entry.is_estimate_stated:
            return model_too_large(model.name, files_nbytes, limit_nbytes)
        if files_nbytes:
            self._residency.note_files(model, files_nbytes)
        return None

    # --- loads ---------------------------------------------------------------------------------------------------

    def finish(self, finished: inputs.LoadFinished, now: float) -> None:
        """An engine is open: admit requests, or make room first if it is larger than reserved, or give it up."""
        instance = self._found(finished.name, finished.generation)
        self._residency.open_engine(instance, finished.weights_nbytes)
        if instance.state is not ModelState.LOADING:  # abandoned or timed out, and the load ended well all the same
            self._residency.close_engine(instance)
            return
        self._residency.note_weights(self._residency.models[instance.name], finished.weights_nbytes)
        growth = finished.weights_nbytes - self._residency.nbytes(instance)
        if growth <= max(0, unowned_nbytes(self._residency)):
            self._admit(instance, now)
        elif not self._make_room_to_grow(instance, growth, now):
            limit_nbytes = self._residency.limits.budget_nbytes
            error = model_too_large(instance.name, finished.weights_nbytes, limit_nbytes)
            self._fail_instance(instance, error, now)
            self._residency.close_engine(instance)

    def fail(self, failed: inputs.LoadFailed, now: float) -> None:
        """A load ended without an engine; its memory is free."""
        instance = self._found(failed.name, failed.generation)
        if instance.state is ModelState.LOADING:
            error = failed.error or model_load_failed(failed.name, f"the load of model {failed.name!r} gave up")
            self._fail_instance(instance, error, now)
        self._end(instance, 0, now)

    def time_out(self, name: str, generation: int, now: float) -> None:
        """A load takes too long: its waiters hear so; its bytes stay charged until it has really ended."""
        instance = self._found(name, generation)
        self._fail_instance(instance, load_timeout(name, self._residency.limits.load_timeout_seconds), now)
        if instance.engine is EngineLife.OPEN:  # it was waiting for room to grow
            self._residency.close_engine(instance)
        else:
            self._residency.effects.append(AbandonLoad(*instance.key))

    def _admit(self, instance: Instance, now: float) -> None:
        model = self._residency.models[instance.name]
        self._residency.finish_load(instance, now)
        self._serve(model, now)
        self._unloading.begin_waiting_drains(model, now)

    def _make_room_to_grow(self, instance: Instance, growth: int, now: float) -> bool:
        """The weights are larger than reserved: evict idle models for the rest, or leave everything as it is."""
        room = survey(self._residency, self._queue.groups.keys(), now)
        idle = [victim for victim in room.idle if victim.instance.state is ModelState.LOADED]
        victims = smallest_set(growth - room.free - room.coming, idle)
        if victims is None:
            return False
        instance.growing_nbytes = growth
        for victim in victims:
            self._residency.counters.evictions += 1
            self._residency.models[instance.name].evicted.append(victim.instance.name)
            self._residency.drain(victim.instance, Cause.RIVAL, now)
        return True

    def _admit_grown(self, now: float) -> None:
        """Room came back: settle the loads that were larger than reserved."""
        for instance in list(self._residency.open.values()):
            if instance.growing_nbytes and unowned_nbytes(self._residency) >= 0:
                self._admit(instance, now)

    def _fail_instance(self, instance: Instance, error: InferdError, now: float) -> None:
        """A load failed or an engine died: everyone who waits for the model hears why."""
        model = self._residency.models[instance.name]
        event = Event.LOAD_FAILED if instance.state is ModelState.LOADING else Event.DIED
        self._residency.fail(instance, event, error, now)
        if model.state is not ModelState.LOADING:  # else its successor is on the way
            self._answer_failure(model, error, now, reloads_only=model.state is not ModelState.FAILED)
        self._unloading.give_up_on_load(model, now)

    def _answer_failure(self, model: Model, error: InferdError, now: float, *, reloads_only: bool = False) -> None:
        group = self._queue.groups.get(model.name)
        if group is None:
            return
        for ticket in group.in_order():
            if not reloads_only or ticket.wants_reload:
                self._refuse(ticket, error, now)

    # --- ends ----------------------------------------------------------------------------------------------------

    def die(self, died: inputs.Died, now: float) -> None:
        """An engine died: its model fails; nobody waits for an older generation."""
        instance = self._residency.find(died.name, died.generation)
        if instance is None or instance.engine is not EngineLife.OPEN:
            return
        if instance.state in (ModelState.FAILED, ModelState.QUEUED):  # it has died before
            return
        if instance in self._residency.models[instance.name].retiring:
            self._residency.change(instance, Event.DIED, now)
        else:
            self._fail_instance(instance, died.error, now)
        if not instance.leases:
            self._residency.close_engine(instance)

    def finish_unload(self, finished: inputs.UnloadFinished, now: float) -> None:
        """An engine's end is proved."""
        self._end(self._found(finished.name, finished.generation), finished.freed_nbytes, now)

    def fail_unload(self, failed: inputs.UnloadFailed, now: float) -> None:
        """An end that is not proved: the bytes stay charged and the model stays failed."""
        instance = self._found(failed.name, failed.generation)
        instance.engine = EngineLife.LOST
        if instance.state is ModelState.UNLOADING:
            self._residency.fail(instance, Event.UNLOAD_FAILED, failed.error, now)
        model = self._residency.models[failed.name]
        if model.current is instance:
            self._answer_failure(model, failed.error, now)
        self._unloading.fail(model, failed.error)

    def _end(self, instance: Instance, freed_nbytes: int, now: float) -> None:
        model = self._residency.models[instance.name]
        self._residency.end(instance, now)
        self._unloading.note_end(model, instance.generation, freed_nbytes, now)
        self._admit_grown(now)
        if model.state is ModelState.UNLOADED and self._queue.waiting(model.name):
            self._residency.want(model, now)
        self._residency.forget_if_removed(model)

    def _found(self, name: str, generation: int) -> Instance:
        instance = self._residency.find(name, generation)
        assert instance is not None, f"{name} generation {generation} has ended already"
        return instance
