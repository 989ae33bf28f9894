"""Each contention strategy over the same traffic, and the figures of what became of it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import process_time

from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.registry.policy import RegistryLimits

from .client import Client, End
from .simulation import Simulation
from .traffic import GIB, Scenario, draw


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one strategy made of the traffic. Shares are of all requests; seconds are virtual, but for `cpu_seconds`."""

    strategy: Strategy
    requests: int
    hit_share: float
    served_share: float
    refused_share: float
    left_share: float
    wait_p50: float
    wait_p99: float
    wait_max: float
    loads: int
    swaps: int
    drains: int
    preemptions: int
    interrupted: int
    paused_p99: float
    lost_seconds: float
    worked_seconds: float
    events: int
    cpu_seconds: float
    waits: tuple[float, ...]  # sorted, of those who began

    @property
    def lost_share(self) -> float:
        """Work that was done twice, of all work."""
        return self.lost_seconds / self.worked_seconds if self.worked_seconds else 0.0


def compare(scenario: Scenario) -> Iterator[Outcome]:
    """Every strategy."""
    return (simulate(scenario, strategy) for strategy in Strategy)


def simulate(scenario: Scenario, strategy: Strategy) -> Outcome:
    """One strategy, with the times that a server has by default."""
    traffic, policy = draw(scenario), ContentionPolicy(strategy)
    limits = RegistryLimits(int(scenario.budget_gib * GIB), policy)
    simulation = Simulation(traffic.entries, limits, seed=scenario.seed, deadline_seconds=scenario.deadline_seconds)
    for arrival in traffic.arrivals:
        simulation.expect(arrival, policy)
    began = process_time()
    simulation.run()
    unanswered = [client for client in simulation.clients if client.end is None]
    assert not unanswered, f"{len(unanswered)} requests were never answered"
    return _outcome(strategy, simulation, process_time() - began)


def _outcome(strategy: Strategy, simulation: Simulation, cpu_seconds: float) -> Outcome:
    clients, counters = simulation.clients, simulation.machine.residency.counters
    waits = sorted(client.wait_seconds for client in clients if client.wait_seconds is not None)
    paused = sorted(client.paused_seconds for client in clients if client.interruptions)
    return Outcome(
        strategy=strategy,
        requests=len(clients),
        hit_share=simulation.hits / len(clients),
        served_share=_share(clients, End.SERVED),
        refused_share=_share(clients, End.REFUSED),
        left_share=_share(clients, End.LEFT),
        wait_p50=quantile(waits, 0.5),
        wait_p99=quantile(waits, 0.99),
        wait_max=quantile(waits, 1.0),
        loads=simulation.loads,
        swaps=simulation.swaps,
        drains=counters.drains,
        preemptions=counters.preemptions,
        interrupted=counters.interrupted_requests,
        paused_p99=quantile(paused, 0.99),
        lost_seconds=sum(client.lost_seconds for client in clients),
        worked_seconds=sum(client.worked_seconds for client in clients),
        events=simulation.events,
        cpu_seconds=cpu_seconds,
        waits=tuple(waits),
    )


def _share(clients: Sequence[Client], end: End) -> float:
    return sum(client.end is end for client in clients) / len(clients)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed; 0 of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
