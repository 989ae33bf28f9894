"""What a decision costs: a fixed number of clients who ask again and again, and a stopwatch around the machine.

CPU time of the thread, so that what else the computer does counts for nothing. Every event is timed: asks, grants,
cancels, loads and unloads that end, alarms.
"""

import gc
from dataclasses import dataclass
from random import Random
from time import thread_time_ns

from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.registry import effects, inputs
from inferd_server.registry.policy import RegistryLimits

from .client import Client
from .simulation import Simulation
from .strategies import quantile
from .traffic import GIB, Arrival, entry

SIZES = (10, 100, 1_000)
CLIENTS = (10, 100, 1_000, 10_000)
EVENTS = 10_000
WARM_UP_EVENTS = 2_000
THINK_SECONDS = 0.5
RESIDENT_SHARE = 0.1  # of the models fit into the budget
POLICIES = tuple(ContentionPolicy(strategy, wait_timeout_seconds=600.0) for strategy in Strategy)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the events of one run took; microseconds of CPU.

    Attributes:
        tickets: that waited at the end, for so many models (`groups`), while so many `leases` ran.
        answers: grants and refusals.
    """

    models: int
    clients: int
    tickets: int
    groups: int
    leases: int
    events: int
    answers: int
    seconds: float
    p50_us: float
    p99_us: float
    max_us: float
    dearest: str
    kinds: dict[str, tuple[int, float]]  # by input: how many, and their mean

    @property
    def mean_us(self) -> float:
        """Of one event."""
        return self.seconds / self.events * 1e6

    @property
    def decisions_per_second(self) -> float:
        """Events decided in a second of CPU."""
        return self.events / self.seconds


class TimedSimulation(Simulation):
    """Notes what each event took."""

    def __init__(self, *args: object, **facts: object) -> None:
        super().__init__(*args, **facts)  # type: ignore[arg-type]
        self.taken_ns: list[tuple[int, str]] = []
        self.answers = 0

    def handle(self, happening: inputs.Input) -> list[effects.Effect]:
        """As the simulation does, with a stopwatch."""
        began = thread_time_ns()
        orders = super().handle(happening)
        self.taken_ns.append((thread_time_ns() - began, type(happening).__name__))
        self.answers += sum(isinstance(order, effects.Grant | effects.Refuse) for order in orders)
        return orders


class Crowd:
    """So many clients; whoever has been answered thinks for a while and asks for something else."""

    def __init__(self, models: int, clients: int, seed: int = 1) -> None:
        self._random = Random(seed)
        self._entries = [entry(f"model-{number:04d}", self._random.choice((1, 2, 4, 8))) for number in range(models)]
        total = sum(one.estimated_bytes for one in self._entries)
        limits = RegistryLimits(max(16 * GIB, int(total * RESIDENT_SHARE)), POLICIES[0])
        self.simulation = TimedSimulation(
            self._entries, limits, seed=seed, deadline_seconds=3600.0, ended=self._come_again
        )
        for _ in range(clients):
            self._come(self._random.random())

    def _come_again(self, client: Client) -> None:
        self._come(self.simulation.now + self._random.expovariate(1 / THINK_SECONDS))

    def _come(self, at: float) -> None:
        model = self._random.choice(self._entries)
        arrival = Arrival(at, model.name, self._random.randint(1, 1000), self._random.randint(1, 1000))
        self.simulation.expect(arrival, self._random.choice(POLICIES))


def measure(models: int, clients: int, events: int = EVENTS) -> Cost:
    """So many events, once everybody has come and the queue has its length."""
    simulation = Crowd(models, clients).simulation
    simulation.run(clients + WARM_UP_EVENTS)
    simulation.taken_ns.clear()
    simulation.answers = 0
    gc.collect()
    gc.disable()  # it would look at our clients most of the time
    try:
        simulation.run(events)
    finally:
        gc.enable()
    return _cost(models, clients, simulation)


def _cost(models: int, clients: int, simulation: TimedSimulation) -> Cost:
    taken = sorted(simulation.taken_ns)
    us = [ns / 1e3 for ns, _ in taken]
    by_kind: dict[str, list[float]] = {}
    for ns, kind in taken:
        by_kind.setdefault(kind, []).append(ns / 1e3)
    return Cost(
        models=models,
        clients=clients,
        tickets=len(simulation.machine.queue),
        groups=len(simulation.machine.queue.groups),
        leases=sum(len(instance.leases) for instance in simulation.machine.residency.open.values()),
        events=len(us),
        answers=simulation.answers,
        seconds=sum(us) / 1e6,
        p50_us=quantile(us, 0.5),
        p99_us=quantile(us, 0.99),
        max_us=us[-1],
        dearest=taken[-1][1],
        kinds={kind: (len(times), sum(times) / len(times)) for kind, times in sorted(by_kind.items())},
    )
