"""Many clients on a real loop who ask, cancel, load, unload and reload at random, while engines fail now and then."""

import asyncio
import random

import pytest

from fakes.resident import MIB, FakeLoader, FakeResident, entry
from inferd_server.core.errors import InferdError, Reason, engine_failed
from inferd_server.core.model import ContentionPolicy, Strategy, UnloadMode
from inferd_server.registry.registry import Lease, LeaseRequest, ModelSnapshot, Registry, RegistryLimits

SIZES = {"a": 2, "b": 3, "c": 4, "d": 6, "e": 9}
EXPECTED = {
    Reason.CAPACITY_EXHAUSTED,
    Reason.WAIT_TIMEOUT,
    Reason.MODEL_UNLOADED,
    Reason.MODEL_BUSY,
    Reason.DRAIN_TIMEOUT,
    Reason.ENGINE_FAILED,
}


class Client:
    """Asks for random models; holds each lease for a moment; comes back when it was interrupted."""

    def __init__(self, registry: Registry, loader: FakeLoader, seed: int) -> None:
        self.registry = registry
        self.loader = loader
        self.random = random.Random(seed)
        self.completed = 0
        self.reasons: set[Reason] = set()

    async def run(self) -> None:
        for _ in range(12):
            policy = ContentionPolicy(self.random.choice(list(Strategy)), 0.3, 0.02)
            request = LeaseRequest(self.random.choice(list(SIZES)), policy, self.random.choice([0, 0, 3]))
            try:
                async with asyncio.timeout(self.random.choice([0.01, 5.0, 5.0])):
                    await self._complete(request)
            except TimeoutError:
                continue
            except InferdError as error:
                self.reasons.add(error.reason)

    async def _complete(self, request: LeaseRequest) -> None:
        while True:
            lease = self.registry.lease_now(request) or await self.registry.acquire(request)
            async with lease:
                if await self._use(lease):
                    self.completed += 1
                    return
            request = LeaseRequest(request.model, request.policy, interrupted=True, preemptions=lease.preemptions)

    async def _use(self, lease: Lease) -> bool:
        """Whether the work was done; False if it was interrupted."""
        resident = lease.resident
        assert isinstance(resident, FakeResident)
        assert resident.close_calls == 0
        for _ in range(self.random.randint(1, 6)):
            await asyncio.sleep(0.001)
            assert resident.close_calls == 0, "closed under a lease"
            if resident.aborted_with is not None:
                raise resident.aborted_with
            if resident.interrupted_by is not None:
                return False
        return True


async def disturb(registry: Registry, loader: FakeLoader, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        await asyncio.sleep(0.005)
        name = chance.choice(list(SIZES))
        try:
            async with asyncio.timeout(0.5):
                match chance.randrange(5):
                    case 0:
                        await registry.unload(name, chance.choice(list(UnloadMode)), 0.01)
                    case 1:
                        await registry.load(name, detach=True, reload=True)
                    case 2 if name in loader.residents and chance.random() < 0.3:
                        resident = loader.residents[name]
                        resident.die(engine_failed(name))
                        resident.aborted_with = engine_failed(name)
                    case _:
                        await registry.load(name)
        except (InferdError, TimeoutError):
            continue


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_leaves_nothing_behind_and_never_exceeds_the_budget(seed: int) -> None:
    loader = FakeLoader()
    limits = RegistryLimits(
        10 * MIB,
        ContentionPolicy(Strategy.WAIT_THEN_FAIL, 0.3),
        min_residency_seconds=0.01,
        drain_busy_after_seconds=0.05,
    )
    registry = Registry([entry(name, mib) for name, mib in SIZES.items()], loader, limits)
    violations: list[int] = []

    def watch(_: ModelSnapshot) -> None:
        used_nbytes = registry.snapshot().memory.used_nbytes
        if used_nbytes > 10 * MIB:
            violations.append(used_nbytes)

    registry.subscribe(watch)
    clients = [Client(registry, loader, seed * 100 + number) for number in range(20)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
        group.create_task(disturb(registry, loader, seed))
    assert not violations
    assert set().union(*(client.reasons for client in clients)) <= EXPECTED
    assert sum(client.completed for client in clients) > 50
    assert registry.statistics().leases == 0
    async with asyncio.timeout(5):
        while registry.statistics().waiting:  # noqa: ASYNC110 - detached loads, until their patience ends
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await registry.close()
    assert registry.snapshot().memory.used_nbytes == 0
