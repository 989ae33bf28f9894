"""The machine's surroundings, simulated: a virtual clock, loads and unloads under way, and what must always hold."""

from collections.abc import Iterable

from fakes.resident import entry
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import ContentionPolicy, ModelEntry, ModelState, Strategy, UnloadMode
from inferd_server.registry import effects, inputs
from inferd_server.registry.instances import Cause, EngineLife
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.ledger import InstanceKey
from inferd_server.registry.machine import Machine
from inferd_server.registry.policy import RegistryLimits
from inferd_server.registry.room import unowned_nbytes
from inferd_server.registry.state import TRANSITIONS
from inferd_server.registry.tickets import Outlook

MAX_ROUNDS = 1000
"""Of `World.run`: what has not come to rest by then never does."""
EXPIRING = (Strategy.WAIT_THEN_FAIL, Strategy.WAIT_THEN_PREEMPT)


class World:
    """Carries out effects as bookkeeping, and checks each against the promises."""

    def __init__(self, entries: Iterable[ModelEntry], limits: RegistryLimits, now: float = 100.0) -> None:
        self.machine = Machine(entries, limits)
        self.now = now
        self.numbers = 0
        self.asked: dict[int, tuple[LeaseRequest | None, float]] = {}
        self.detached: set[int] = set()
        self.orders: set[int] = set()
        self.leases: dict[int, tuple[InstanceKey, LeaseRequest]] = {}
        self.granted: dict[int, effects.Grant] = {}
        self.refused: dict[int, InferdError] = {}
        self.answered: dict[int, object] = {}
        self.checks: set[tuple[str, int]] = set()
        self.loads: dict[InstanceKey, bool] = {}  # abandoned?
        self.residents: set[InstanceKey] = set()
        self.interrupted: set[InstanceKey] = set()
        self.aborted: set[InstanceKey] = set()
        self.unloads: set[InstanceKey] = set()
        self.stuck: set[InstanceKey] = set()
        self.states: dict[str, ModelState] = {e.name: ModelState.UNLOADED for e in self.machine_entries()}
        self.history: list[tuple[float, object]] = []

    def machine_entries(self) -> list[ModelEntry]:
        return [model.entry for model in self.machine.residency.models.values()]

    # --- what a test does ----------------------------------------------------------------------------------------

    def ask(self, request: LeaseRequest) -> int:
        number = self._number()
        self.asked[number] = (request, self.now)
        self.tell(inputs.Ask(number, request))
        return number

    def load(self, name: str, policy, *, pin: bool | None = None, reload: bool = False, detached: bool = False) -> int:
        number = self._number()
        self.asked[number] = (None, self.now)
        if detached:
            self.detached.add(number)
        self.tell(inputs.LoadWanted(number, name, policy, pin, reload, detached))
        return number

    def unload(self, name: str, mode, seconds: float | None = None) -> int:
        number = self._number()
        self.orders.add(number)
        self.tell(inputs.UnloadWanted(number, name, mode, seconds))
        return number

    def cancel(self, number: int) -> None:
        self.asked.pop(number, None)
        self.tell(inputs.Cancel(number))

    def release(self, number: int) -> None:
        del self.leases[number]
        self.tell(inputs.Released(number))

    def finish_check(self, check: tuple[str, int], error: InferdError | None = None, nbytes: int | None = None) -> None:
        self.checks.remove(check)
        self.tell(inputs.CheckFinished(*check, error, nbytes))

    def finish_load(self, key: InstanceKey, nbytes: int | None = None) -> None:
        del self.loads[key]
        self.residents.add(key)
        size = self.machine.residency.ledger.charged_nbytes(key) if nbytes is None else nbytes
        self.tell(inputs.LoadFinished(*key, size))

    def fail_load(self, key: InstanceKey, error: InferdError | None = None) -> None:
        del self.loads[key]
        self.tell(inputs.LoadFailed(*key, error))

    def finish_unload(self, key: InstanceKey) -> None:
        self.unloads.discard(key)
        self.residents.discard(key)
        self.interrupted.discard(key)
        self.tell(inputs.UnloadFinished(*key, self.machine.residency.ledger.charged_nbytes(key)))

    def die(self, key: InstanceKey, error: InferdError) -> None:
        self.tell(inputs.Died(*key, error))

    def advance(self, seconds: float) -> None:
        """Let time go by, with a tick at each moment that the machine asked for."""
        end = self.now + seconds
        while (wake := self.machine.next_wake()) <= end:
            self.now = max(self.now, wake)
            self.tell(inputs.Tick())
        self.now = end

    def run_checks(self) -> None:
        """Let every check pass."""
        for check in sorted(self.checks):
            self.finish_check(check)

    def run(self) -> None:
        """Finish every check, load and unload, until none is under way."""
        rounds = 0
        while self.checks or self.loads or self.unloads:
            rounds += 1
            assert rounds < MAX_ROUNDS, "it goes on for ever"
            self.run_checks()
            for key in list(self.loads):
                if key in self.loads:
                    self.fail_load(key) if self.loads[key] else self.finish_load(key)
            for key in list(self.unloads):
                self.finish_unload(key)

    def hold(self, name: str, policy, **facts: object) -> int:
        """A lease, with everything it takes."""
        number = self.ask(LeaseRequest(name, policy, **facts))
        self.run()
        assert number in self.leases, self.refused.get(number)
        return number

    # --- what the machine does -----------------------------------------------------------------------------------

    def tell(self, happening: inputs.Input) -> None:
        self.history.append((self.now, happening))
        for effect in self.machine.handle(happening, self.now):
            self.history.append((self.now, effect))
            self.carry_out(effect)
        self.check()

    def carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Grant(ticket, name, generation):
                asked = self.asked.pop(ticket, None)
                assert asked is not None, "granted twice, or after it left"
                assert (name, generation) in self.residents - self.unloads, "granted on something that is not loaded"
                assert (name, generation) not in self.interrupted
                assert 0 <= effect.loading_seconds <= effect.waited_seconds
                self.granted[ticket] = effect
                self.leases[ticket] = ((name, generation), asked[0])
            case effects.Refuse(ticket, error):
                assert ticket in self.asked or ticket in self.orders, "answered twice"
                assert error.facts.get("blocking_models") != "", "nobody is in the way"
                self.asked.pop(ticket, None)
                self.orders.discard(ticket)
                self.refused[ticket] = error
            case effects.AnswerLoad(ticket):
                assert self.asked.pop(ticket, None) is not None
                self.answered[ticket] = effect
            case effects.AnswerUnload(order):
                self.orders.remove(order)
                self.answered[order] = effect
            case effects.StartCheck(name, check):
                self.checks.add((name, check))
            case effects.StartLoad(name, generation):
                self.loads[(name, generation)] = False
            case effects.AbandonLoad(name, generation):
                assert not self.loads[(name, generation)]
                self.loads[(name, generation)] = True
            case effects.StartUnload(name, generation):
                key = (name, generation)
                assert key in self.residents - self.unloads
                assert key not in {held for held, _ in self.leases.values()}, "closed under a lease"
                self.unloads.add(key)
            case effects.Interrupt(name, generation):
                key = (name, generation)
                assert not self.machine.residency.models[name].pinned
                assert all(request.preemptible for held, request in self.leases.values() if held == key)
                self.interrupted.add(key)
            case effects.ResumeAdmission(name, generation):
                self.interrupted.remove((name, generation))
            case effects.Abort(name, generation):
                self.aborted.add((name, generation))
            case effects.Changed(name, state):
                known = self.states.get(name, state)
                assert known is state or state in TRANSITIONS[known].values(), (name, known, state)
                self.states[name] = state

    def check(self) -> None:
        residency, queue = self.machine.residency, self.machine.queue
        assert residency.ledger.used_nbytes <= residency.ledger.limit_nbytes
        assert residency.ledger.keys() == residency.open.keys() == self.loads.keys() | self.residents
        again = self.machine.handle(inputs.Tick(), self.now)
        assert again == [], f"not settled: {again}"
        assert self.machine.next_wake() > self.now
        self._forget_replaced()
        assert set(queue.tickets) == set(self.asked)
        assert {order.id for model in residency.models.values() for order in model.orders} == self.orders
        held = dict.fromkeys(residency.open, 0)
        for key, _ in self.leases.values():
            held[key] += 1
        assert {key: len(instance.leases) for key, instance in residency.open.items()} == held
        self._check_claims()
        for model in residency.models.values():
            self._check_model(model)
        for number, ticket in queue.tickets.items():
            self._check_ticket(number, ticket)

    def _forget_replaced(self) -> None:
        """Of the loads that nobody waits for, one for each model is kept."""
        tickets = self.machine.queue.tickets
        for number in self.detached & self.asked.keys() - tickets.keys():
            del self.asked[number]
        kept = [tickets[number].model for number in self.detached & tickets.keys()]
        assert len(kept) == len(set(kept)), kept

    def _check_claims(self) -> None:
        residency = self.machine.residency
        coming = 0
        for instance in residency.open.values():
            if instance.claimed_by:
                assert residency.claims[instance.claimed_by].victims[instance.key] is instance
            elif instance.state is ModelState.UNLOADING:
                coming += residency.nbytes(instance)
        for claim in residency.claims.values():
            assert claim.victims
            assert claim.model in self.machine.queue.groups
        assert unowned_nbytes(residency) + coming >= 0, "more was promised than will come"

    def _check_model(self, model) -> None:
        waiting = self.machine.queue.waiting(model.name)
        admitting = [i for i in model.instances() if i.state is ModelState.LOADED]
        assert len(admitting) <= 1
        if model.state is ModelState.QUEUED:
            assert waiting
        if model.state is ModelState.UNLOADED:
            assert not waiting
            assert model.current.engine is EngineLife.ABSENT
        if model.state is ModelState.FAILED:
            assert not waiting
            assert model.successor is None
            assert model.failure is not None
        if model.state is ModelState.LOADED and waiting:
            assert self.machine.queue.groups[model.name].wants_reload
        if model.pinned:
            left_for_others = model.current.cause in (Cause.RIVAL, Cause.IDLE)
            assert not (left_for_others and model.state is ModelState.LOADED)
        assert self.states[model.name] is model.state

    def _check_ticket(self, number: int, ticket) -> None:
        model = self.machine.residency.models[ticket.model]
        group = self.machine.queue.groups[ticket.model]
        has_room = model.state is ModelState.LOADING or model.successor is not None
        if has_room or ticket.model in self.machine.residency.claims:
            pass
        elif ticket.patience.fails_at_once:
            assert group.outlook is not Outlook.BLOCKED
        if not has_room:
            assert self.now < ticket.patience.expires_at, "waits past its bound"

    def settle_down(self) -> None:
        """Take the pins off, give everything back, finish everything, let time go by: nobody may be left waiting."""
        for number, (request, _) in list(self.asked.items()):
            if request is None and number in self.asked:
                self.cancel(number)
        for model in list(self.machine.residency.models.values()):
            if model.pinned:
                self.load(model.name, ContentionPolicy(Strategy.FAIL), pin=False)
                self.unload(model.name, UnloadMode.FORCE)
                model.pinned = False
        for _ in range(200):
            for lease in list(self.leases):
                self.release(lease)
            self.run()
            if not self.asked and not self.orders:
                break
            wake = self.machine.next_wake()
            if wake < float("inf"):
                self.advance(wake - self.now)
            elif not self.leases and not self.checks:
                break
        assert not self.asked, f"left waiting: {self.asked}"
        assert not self.orders

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers


def models(**sizes: int) -> list[ModelEntry]:
    return [entry(name, mib) for name, mib in sizes.items()]


def reason(world: World, number: int) -> Reason | None:
    error = world.refused.get(number)
    return error.reason if error is not None else None
