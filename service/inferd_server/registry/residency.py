"""What is in memory: the models, their instances, the ledger and the claims, and every verb that changes them.

Each verb makes its change and puts the effect that carries it out on `effects`. None of them decides anything: the
planner's pass (placement.py) and the machine (machine.py) do.
"""

from collections.abc import Iterable
from dataclasses import replace

from inferd_server.core.errors import InferdError
from inferd_server.core.model import ModelEntry, ModelState

from .effects import (
    AbandonLoad,
    Abort,
    Changed,
    Effect,
    Interrupt,
    ResumeAdmission,
    StartCheck,
    StartLoad,
    StartUnload,
)
from .instances import Cause, Check, Claim, Counters, EngineLife, Failure, Instance, Model, with_files_of
from .lease import LeaseRecord
from .ledger import InstanceKey, Ledger
from .policy import RegistryLimits, backoff_seconds
from .state import Event, after

LONG_LIFE_SECONDS = 300.0
"""An engine that lived so long before it died does not count as failing again and again."""


class Residency:
    """Models by name; `open` holds every instance whose engine may hold memory, exactly those of the ledger."""

    def __init__(self, entries: Iterable[ModelEntry], limits: RegistryLimits) -> None:
        self.limits = limits
        self.ledger = Ledger(limits.budget_nbytes)
        self.models = {entry.name: new_model(entry, 0.0) for entry in entries}
        self.open: dict[InstanceKey, Instance] = {}
        self.claims: dict[str, Claim] = {}
        self.counters = Counters()
        self.effects: list[Effect] = []
        self.is_unsettled = False  # something changed that a plan may depend on
        self.returned: list[str] = []  # models that serve again; the machine serves their tickets

    def nbytes(self, instance: Instance) -> int:
        """What an instance is charged."""
        return self.ledger.charged_nbytes(instance.key)

    def find(self, name: str, generation: int) -> Instance | None:
        """The instance of that generation, if its engine has not ended."""
        return self.open.get((name, generation))

    def change(self, instance: Instance, event: Event, now: float) -> None:
        """Move an instance along the table; clients see the current one's changes."""
        instance.state = after(instance.state, event)
        instance.since = now
        self.is_unsettled = True
        if self.models[instance.name].current is instance:
            self.tell(instance.name)

    def tell(self, name: str) -> None:
        """Report what clients see of a model now."""
        model = self.models[name]
        self.effects.append(Changed(name, model.state, model.current.since))

    def forget_if_removed(self, model: Model) -> None:
        """Let a model go that left the configuration, once its last engine has ended."""
        gone = all(instance.engine is EngineLife.ABSENT for instance in model.instances())
        if model.removed and gone:
            del self.models[model.name]
            self.effects.append(Changed(model.name, model.state, model.current.since, removed=model.entry))

    # --- wanted, checked, loaded ---------------------------------------------------------------------------------

    def want(self, model: Model, now: float) -> None:
        """A ticket asks for a model that is not there: queue it, and check its files."""
        if model.state in (ModelState.UNLOADED, ModelState.FAILED):
            self.change(model.current, Event.WANTED, now)
        if model.check is Check.NONE:
            model.check = Check.RUNNING
            model.checks += 1
            self.effects.append(StartCheck(model.name, model.checks))

    def pass_check(self, model: Model) -> None:
        """The files are as they should be: room may be made."""
        model.check = Check.PASSED
        self.is_unsettled = True

    def note_files(self, model: Model, nbytes: int) -> None:
        """Its weight files were measured: an unstated estimate follows; what other files needed is forgotten."""
        if nbytes != model.files_nbytes:
            model.loaded_nbytes = 0
        model.files_nbytes = nbytes
        if not model.entry.is_estimate_stated:
            model.entry = replace(model.entry, estimated_bytes=nbytes)

    def note_facts(self, model: Model, fresh: ModelEntry | None) -> None:
        """What its files say now holds for the load that comes (they may be newer than the configuration)."""
        if fresh is not None and fresh.engine == model.entry.engine:
            model.entry = with_files_of(model.entry, fresh)

    def change_entry(self, model: Model, entry: ModelEntry, now: float) -> None:
        """A new configuration: what was prepared for a load that has not begun is done again, if it counts for that."""
        older, model.entry = model.entry, entry
        if (older.engine, older.estimated_bytes) == (entry.engine, entry.estimated_bytes):
            return
        self.drop_claim(model.name, now)
        if model.check is not Check.NONE:
            model.check = Check.NONE
            self.want(model, now)

    def unwant(self, model: Model, now: float) -> None:
        """The last ticket left: drop what was prepared for it. A load under way goes on."""
        self.is_unsettled = True
        self.drop_claim(model.name, now)
        model.check = Check.NONE
        if model.state is ModelState.QUEUED:
            model.evicted.clear()
            ended = model.current.engine is EngineLife.ABSENT
            self.change(model.current, Event.DROPPED if ended else Event.FELL_BACK, now)

    def start_load(self, model: Model, now: float) -> None:
        """Reserve and load the next generation: in place of nothing, or beside a current one that serves."""
        instance = model.current
        if instance.state is not ModelState.QUEUED:
            instance = model.successor = Instance(model.name, now, model.entry, state=ModelState.QUEUED)
        model.generations += 1
        instance.entry = model.entry
        instance.generation = model.generations
        instance.load_started_at = instance.last_used_at = now
        instance.engine = EngineLife.OPENING
        self.ledger.reserve(instance.key, model.need_nbytes)
        self.open[instance.key] = instance
        model.check = Check.NONE
        self.drop_claim(model.name, now)
        self.change(instance, Event.LOAD_STARTED, now)
        self.effects.append(StartLoad(*instance.key))

    def open_engine(self, instance: Instance, weights_nbytes: int) -> None:
        """A load ended well: the engine is open, its weights measured."""
        instance.engine = EngineLife.OPEN
        instance.weights_nbytes = weights_nbytes

    def note_weights(self, model: Model, nbytes: int) -> None:
        """A load measured its weights; what exceeds the whole budget is no size to reserve."""
        if nbytes <= self.limits.budget_nbytes:
            model.loaded_nbytes = nbytes

    def finish_load(self, instance: Instance, now: float) -> None:
        """The engine serves: charge what was measured, and let a successor take over."""
        self.ledger.settle(instance.key, instance.weights_nbytes)
        instance.growing_nbytes = 0
        instance.loaded_at = instance.last_used_at = now
        instance.load_seconds = now - instance.load_started_at
        model = self.models[instance.name]
        model.failure = None
        self.counters.loads += 1
        if model.successor is instance:
            self._take_over(model, now)
        self.change(instance, Event.LOAD_SUCCEEDED, now)

    def _take_over(self, model: Model, now: float) -> None:
        older, successor = model.current, model.successor
        assert successor is not None
        model.current, model.successor = successor, None
        if older.engine is not EngineLife.ABSENT:
            model.retiring.append(older)
        if older.state is ModelState.LOADED:
            self.drain(older, Cause.RELOAD, now)

    def fail(self, instance: Instance, event: Event, error: InferdError, now: float) -> None:
        """A check or load failed or an engine died. A failing successor leaves the current instance serving."""
        model = self.models[instance.name]
        instance.growing_nbytes = 0
        self.note_failure(model, self._failures(model, instance, event, now), error, now)
        if model.successor is instance:
            model.successor = None
            model.retiring.append(instance)
            self.tell(model.name)
        self.change(instance, event, now)
        if model.current is instance and model.successor is not None:
            self._promote(model, now)
        if instance.claimed_by:
            self.drop_claim(instance.claimed_by, now)  # its end may be far: the claimant looks again

    def _promote(self, model: Model, now: float) -> None:
        """The current engine died while its successor is being loaded: that load is the model's own from now on."""
        assert model.successor is not None
        model.retiring.append(model.current)
        model.current, model.successor = model.successor, None
        self.effects.append(Changed(model.name, ModelState.QUEUED, now))
        self.tell(model.name)

    def note_failure(self, model: Model, failures: int, error: InferdError, now: float) -> None:
        """Remember why, and until when to leave the model alone; what was prepared for its tickets is dropped."""
        model.failure = Failure(error, now, failures, now + backoff_seconds(failures))
        model.check = Check.NONE
        model.evicted.clear()
        self.drop_claim(model.name, now)

    def _failures(self, model: Model, instance: Instance, event: Event, now: float) -> int:
        if event is Event.DIED:
            self.counters.deaths += 1
            long_lived = now - instance.loaded_at >= LONG_LIFE_SECONDS
            model.deaths = 1 if long_lived else model.deaths + 1
            return model.deaths
        self.counters.load_failures += 1
        return 1 + (model.failure.failures if model.failure else model.deaths)

    # --- on the way out ------------------------------------------------------------------------------------------

    def drain(self, instance: Instance, cause: Cause, now: float) -> None:
        """Admit nothing more; unload once no lease is left, which may be now."""
        instance.cause = cause
        self.change(instance, Event.DRAIN_STARTED, now)
        self._unload_if_empty(instance, now)

    def preempt(self, instance: Instance, rival: str, now: float) -> None:
        """Interrupt every request of an instance for a rival's ticket."""
        instance.cause = Cause.RIVAL
        self.change(instance, Event.PREEMPTION_STARTED, now)
        self.counters.preemptions += 1
        self.counters.interrupted_requests += len(instance.leases)
        for record in instance.leases.values():
            record.preemptions += ((rival, now),)
        self.effects.append(Interrupt(*instance.key, rival))
        self._unload_if_empty(instance, now)

    def abort(self, instance: Instance, cause: Cause, error: InferdError, now: float) -> None:
        """End every request of an instance with an error; unload once the leases are back."""
        instance.cause = cause
        if instance.state in (ModelState.LOADED, ModelState.DRAINING):
            self.change(instance, Event.PREEMPTION_STARTED, now)
        self.effects.append(Abort(*instance.key, error))
        self._unload_if_empty(instance, now)

    def abandon(self, instance: Instance, cause: Cause, now: float) -> None:
        """Give a load up; its bytes stay charged until it has ended."""
        self.counters.abandoned_loads += 1
        model = self.models[instance.name]
        instance.cause = cause
        self.change(instance, Event.ABANDONED, now)
        if model.successor is instance:
            model.successor = None
            model.retiring.append(instance)
        if instance.engine is EngineLife.OPEN:  # it was waiting for room to grow
            instance.growing_nbytes = 0
            self.close_engine(instance)
        else:
            self.effects.append(AbandonLoad(*instance.key))

    def return_to_service(self, instance: Instance, now: float) -> None:
        """Whatever it was leaving for went away: serve again."""
        interrupted = instance.state is ModelState.PREEMPTING
        instance.idleness_watched = False
        instance.cause = Cause.NONE
        self.change(instance, Event.RETURNED, now)
        self.returned.append(instance.name)
        if interrupted:
            self.effects.append(ResumeAdmission(*instance.key))

    def _unload_if_empty(self, instance: Instance, now: float) -> None:
        if not instance.leases:
            self.change(instance, Event.UNLOAD_STARTED, now)
            self.close_engine(instance)

    def close_engine(self, instance: Instance) -> None:
        """Close an engine that nobody uses."""
        instance.engine = EngineLife.CLOSING
        self.effects.append(StartUnload(*instance.key))

    def end(self, instance: Instance, now: float) -> None:
        """An engine's end is proved: its bytes come back."""
        self.ledger.release(instance.key)
        del self.open[instance.key]
        self.is_unsettled = True
        instance.engine = EngineLife.ABSENT
        instance.growing_nbytes = instance.weights_nbytes = 0
        if instance.claimed_by:
            del self.claims[instance.claimed_by].victims[instance.key]
            instance.claimed_by = ""
        model = self.models[instance.name]
        if instance in model.retiring:
            model.retiring.remove(instance)
            self.tell(model.name)
        elif instance.state is ModelState.FAILED:
            self.tell(model.name)  # it is charged no more, and may be loaded again
        if instance.state is ModelState.UNLOADING:
            instance.cause = Cause.NONE
            self.change(instance, Event.UNLOAD_FINISHED, now)
            if model.current is instance:
                model.deaths = 0

    # --- leases --------------------------------------------------------------------------------------------------

    def lend(self, instance: Instance, record: LeaseRecord, now: float) -> None:
        """A lease counts from the decision, not from when its owner wakes."""
        assert instance.state is ModelState.LOADED, instance.state
        instance.leases[record.id] = record
        instance.unpreemptible += not record.request.preemptible
        instance.last_used_at = now
        self.counters.grants += 1

    def take_back(self, instance: Instance, lease: int, now: float) -> None:
        """A lease came back; the last one may be what the instance's end waited for."""
        record = instance.leases.pop(lease)
        instance.unpreemptible -= not record.request.preemptible
        instance.last_used_at = now
        if instance.leases and record.request.preemptible and not record.preemptions:
            return  # as busy as before
        self.is_unsettled = True
        if instance.leases:
            return
        if instance.state in (ModelState.DRAINING, ModelState.PREEMPTING):
            self._unload_if_empty(instance, now)
        elif instance.state is not ModelState.LOADED and instance.engine is EngineLife.OPEN:
            self.close_engine(instance)

    # --- claims --------------------------------------------------------------------------------------------------

    def claim(self, model: Model) -> Claim:
        """The claim of a model's tickets, made now if there is none."""
        return self.claims.setdefault(model.name, Claim(model.name, model.need_nbytes))

    def own(self, claim: Claim, instance: Instance) -> None:
        """Let a claim speak for a victim's bytes."""
        claim.victims[instance.key] = instance
        instance.claimed_by = claim.model

    def drop_claim(self, name: str, now: float) -> None:
        """End a claim: victims that still serve requests go back to service, unless they are to leave all the same."""
        claim = self.claims.pop(name, None)
        if claim is None:
            return
        self.is_unsettled = True
        for instance in claim.victims.values():
            instance.claimed_by = ""
            if instance.state not in (ModelState.DRAINING, ModelState.PREEMPTING):
                continue
            model = self.models[instance.name]
            if model.orders or model.removed:
                instance.cause = Cause.UNLOAD
            else:
                self._forget_eviction(name, instance.name)
                self.return_to_service(instance, now)

    def _forget_eviction(self, name: str, victim: str) -> None:
        evicted = self.models[name].evicted
        if victim in evicted:
            evicted.remove(victim)


def new_model(entry: ModelEntry, now: float) -> Model:
    """A model that has never been loaded."""
    return Model(entry, Instance(entry.name, now, entry), entry.pinned)
