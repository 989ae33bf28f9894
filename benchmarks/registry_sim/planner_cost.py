"""What a decision costs: a fixed number of clients who ask again and again, and a stopwatch around the machine.

CPU time of the thread, so that what else the computer does counts for nothing. Every event is timed: asks, grants,
cancels, loads and unloads that end, alarms.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from time import thread_time_ns

from inferd_server.core.model import ContentionPolicy, ModelEntry, Strategy
from inferd_server.registry import effects, inputs
from inferd_server.registry.policy import RegistryLimits

from .client import Client
from .simulation import Simulation
from .strategies import quantile
from .traffic import GIB, Arrival, entry

SIZES = (10, 100, 1_000)
TICKETS = (10, 100, 1_000, 10_000)
EVENTS = 10_000
THINK_SECONDS = 5.0
RESIDENT_SHARE = 0.3  # of the models fit into the budget
POLICIES = tuple(ContentionPolicy(strategy, wait_timeout_seconds=600.0) for strategy in Strategy)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the events of one run took; microseconds of CPU. `answers`: grants and refusals."""

    models: int
    tickets: int
    events: int
    answers: int
    seconds: float
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float
    dearest: str
    kinds: dict[str, tuple[int, float, float]]  # by input: how many, mean, p99

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

    def __init__(self, models: int, tickets: int, seed: int = 1) -> None:
        self._random = Random(seed)
        self._entries = [entry(f"model-{number:04d}", self._random.choice((1, 2, 4, 8))) for number in range(models)]
        total = sum(one.estimated_bytes for one in self._entries)
        self._popularity = list(accumulate(1 / rank for rank in range(1, models + 1)))
        limits = RegistryLimits(max(16 * GIB, int(total * RESIDENT_SHARE)), POLICIES[0])
        self.simulation = TimedSimulation(
            self._entries, limits, seed=seed, deadline_seconds=3600.0, ended=self._come_again
        )
        for _ in range(tickets):
            self._come(self._random.random())

    def _come_again(self, client: Client) -> None:
        self._come(self.simulation.now + self._random.expovariate(1 / THINK_SECONDS))

    def _come(self, at: float) -> None:
        (model,) = self._random.choices(self._entries, cum_weights=self._popularity)
        arrival = Arrival(at, model.name, self._random.randint(1, 1000), self._random.randint(1, 1000))
        self.simulation.expect(arrival, self._random.choice(POLICIES))


def measure(models: int, tickets: int, events: int = EVENTS) -> Cost:
    """So many events, once everybody has come and the queue has its length."""
    crowd = Crowd(models, tickets)
    simulation = crowd.simulation
    simulation.run(2 * tickets)
    simulation.taken_ns.clear()
    simulation.answers = 0
    simulation.run(events)
    return _cost(models, len(simulation.machine.queue), simulation)


def _cost(models: int, tickets: int, simulation: TimedSimulation) -> Cost:
    taken = sorted(simulation.taken_ns)
    us = [ns / 1e3 for ns, _ in taken]
    by_kind: dict[str, list[float]] = {}
    for ns, kind in taken:
        by_kind.setdefault(kind, []).append(ns / 1e3)
    return Cost(
        models=models,
        tickets=tickets,
        events=len(us),
        answers=simulation.answers,
        seconds=sum(us) / 1e6,
        mean_us=sum(us) / len(us),
        p50_us=quantile(us, 0.5),
        p99_us=quantile(us, 0.99),
        max_us=us[-1],
        dearest=taken[-1][1],
        kinds={k: (len(v), sum(v) / len(v), quantile(v, 0.99)) for k, v in by_kind.items()},
    )
