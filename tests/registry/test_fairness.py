"""Nobody starves: closed loops of clients on a virtual clock, with loads and requests that take their time."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from registry.world import World

from fakes.resident import MIB, entry
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.registry import inputs
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.policy import RegistryLimits

LOAD_SECONDS = 1.0


@dataclass(eq=False)
class Client:
    """Asks for one model again and again; each request takes `seconds` of running, interruptions not counted."""

    model: str
    policy: ContentionPolicy
    seconds: float
    left: float = 0.0
    ticket: int = 0
    asked_at: float = 0.0
    running_since: float | None = None
    waits: list[float] = field(default_factory=list)
    completed: int = 0


class Simulation:
    """Carries a world through time: what is started ends after a while, interrupted requests come back."""

    def __init__(self, world: World, clients: list[Client]) -> None:
        self.world = world
        self.clients = clients
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._seen: set[object] = set()
        self.loads = 0

    def at(self, moment: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, action))

    def run(self, seconds: float) -> None:
        end = self.world.now + seconds
        for client in self.clients:
            self._ask(client)
        while True:
            self._react()
            wake = self.world.machine.next_wake()
            moment = min(wake, self._events[0][0] if self._events else math.inf)
            if moment > end:
                break
            self.world.now = max(self.world.now, moment)
            if self._events and self._events[0][0] <= self.world.now:
                heapq.heappop(self._events)[2]()
            else:
                self.world.tell(inputs.Tick())

    def _react(self) -> None:
        """Schedule the ends of what was started, and send interrupted requests back to the queue."""
        world = self.world
        for key in [key for key in world.loads if ("load", key) not in self._seen]:
            self._seen.add(("load", key))
            self.loads += 1
            self.at(world.now + LOAD_SECONDS, lambda key=key: key in world.loads and world.finish_load(key))
        for key in [key for key in world.unloads if ("end", key) not in self._seen]:
            self._seen.add(("end", key))
            self.at(world.now + 0.1, lambda key=key: world.finish_unload(key))
        for check in [check for check in sorted(world.checks) if ("check", check) not in self._seen]:
            self._seen.add(("check", check))
            self.at(world.now, lambda check=check: check in world.checks and world.finish_check(check))
        for client in self.clients:
            if client.ticket not in world.leases:
                continue
            if client.running_since is None:
                client.running_since = world.now
                client.waits.append(world.now - client.asked_at)
                self.at(world.now + client.left, lambda client=client, ticket=client.ticket: self._end(client, ticket))
            if world.leases[client.ticket][0] in world.interrupted:
                client.left -= world.now - client.running_since
                preemptions = world.granted[client.ticket].record.preemptions
                world.release(client.ticket)
                self._ask(client, interrupted=True, preemptions=preemptions)

    def _ask(self, client: Client, *, interrupted: bool = False, preemptions=()) -> None:
        if not interrupted:
            client.left = client.seconds
        client.running_since = None
        client.asked_at = self.world.now
        client.ticket = self.world.ask(
            LeaseRequest(client.model, client.policy, interrupted=interrupted, preemptions=preemptions)
        )

    def _end(self, client: Client, ticket: int) -> None:
        if client.ticket == ticket and ticket in self.world.leases:
            client.completed += 1
            self.world.release(ticket)
            self._ask(client)


def simulate(seconds: float, clients: list[Client], sizes: dict[str, int], **facts: float) -> Simulation:
    limits = RegistryLimits(10 * MIB, ContentionPolicy(Strategy.WAIT), **facts)
    simulation = Simulation(World([entry(name, mib) for name, mib in sizes.items()], limits), clients)
    simulation.run(seconds)
    return simulation


def test_three_models_fighting_for_one_place_by_preemption_all_complete_work_at_a_bounded_rate_of_swaps() -> None:
    policy = ContentionPolicy(Strategy.PREEMPT)
    clients = [Client(name, policy, seconds=4.0) for name in ("a", "b", "c") for _ in range(2)]
    simulation = simulate(300.0, clients, {"a": 6, "b": 7, "c": 8})
    assert all(client.completed >= 3 for client in clients), [client.completed for client in clients]
    assert simulation.loads <= 300.0 / 2.0


@pytest.mark.parametrize("strategy", [Strategy.WAIT, Strategy.WAIT_THEN_FAIL, Strategy.WAIT_THEN_PREEMPT])
def test_a_large_model_is_served_under_steady_traffic_on_small_ones(strategy: Strategy) -> None:
    """Its bound: drain_busy_after, the longest running request, an unload, its load, and its own wait for the place."""
    policy = ContentionPolicy(strategy, wait_timeout_seconds=60.0, preempt_after_seconds=30.0)
    small = [Client(name, ContentionPolicy(Strategy.WAIT), 3.0 + i / 7) for i, name in enumerate("abcabcabc")]
    large = Client("large", policy, seconds=1.0)
    simulation = simulate(400.0, [*small, large], {"a": 3, "b": 3, "c": 3, "large": 9})
    assert large.completed >= 20
    assert max(large.waits) <= 5.0 + 4.2 + 0.1 + LOAD_SECONDS + 2.0
    assert all(client.completed >= 10 for client in small)
    assert simulation.world.machine.residency.counters.preemptions == 0


def test_without_fairness_steady_traffic_starves_the_large_model() -> None:
    small = [Client(name, ContentionPolicy(Strategy.WAIT), 3.0 + i / 7) for i, name in enumerate("abcabcabc")]
    large = Client("large", ContentionPolicy(Strategy.WAIT), seconds=1.0)
    simulate(400.0, [*small, large], {"a": 3, "b": 3, "c": 3, "large": 9}, drain_busy_after_seconds=0.0)
    assert large.completed == 0
