"""Loads that nobody waits for: nobody's call bounds their number, so the registry keeps one for each model."""

import asyncio

from registry.world import World, models, reason

from fakes.resident import MIB, FakeLoader
from inferd_server.core.errors import Reason
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy
from inferd_server.registry.policy import RegistryLimits
from inferd_server.registry.registry import LeaseRequest, Registry

FAIL = ContentionPolicy(Strategy.FAIL)
WAIT = ContentionPolicy(Strategy.WAIT)
PREEMPT = ContentionPolicy(Strategy.PREEMPT)
LIMITS = RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0, drain_busy_after_seconds=0.0)


def world(**sizes: int) -> World:
    return World(models(**sizes), LIMITS)


def test_any_number_of_detached_loads_of_a_model_wait_as_one() -> None:
    w = world(a=6, b=6, c=6)
    lease = w.hold("a", WAIT)
    for name in ("b", "c") * 500:
        w.load(name, WAIT, detached=True)
    assert w.machine.queue.waiting("b") == w.machine.queue.waiting("c") == 1
    waited_for = w.load("b", WAIT)
    assert w.machine.queue.waiting("b") == 2
    w.release(lease)
    w.run()
    assert waited_for in w.answered


def test_a_detached_load_stands_where_the_earlier_one_stood() -> None:
    w = world(a=6, b=6, c=6)
    lease = w.hold("a", WAIT)
    w.load("b", WAIT, detached=True)
    w.advance(1.0)
    w.load("c", WAIT, detached=True)
    w.advance(1.0)
    last = w.load("b", WAIT, detached=True)
    assert w.machine.queue.position(w.machine.queue.tickets[last]) == 0
    w.release(lease)
    w.run()
    assert w.machine.residency.models["b"].generations == 1


def test_the_pins_and_reloads_of_detached_loads_are_all_kept() -> None:
    w = world(a=6, b=6)
    lease = w.hold("a", WAIT)
    w.load("a", WAIT, reload=True, detached=True)
    w.load("a", WAIT, pin=True, reload=True, detached=True)
    w.load("a", WAIT, reload=True, detached=True)
    assert w.machine.queue.waiting("a") == 1
    w.release(lease)
    w.run()
    model = w.machine.residency.models["a"]
    assert (model.state, model.current.generation, model.pinned) == (ModelState.LOADED, 2, True)


def test_a_detached_load_without_patience_does_not_end_the_patient_one() -> None:
    w = world(a=6, b=6)
    lease = w.hold("a", WAIT)
    w.load("b", WAIT, detached=True)
    w.load("b", FAIL, detached=True)
    w.load("b", ContentionPolicy(Strategy.WAIT_THEN_FAIL, 1.0), detached=True)
    w.advance(60.0)
    w.release(lease)
    w.run()
    assert w.states["b"] is ModelState.LOADED
    assert not w.refused


def test_a_detached_load_that_may_preempt_does_so_in_the_place_of_one_that_may_not() -> None:
    w = world(a=6, b=6)
    w.hold("a", WAIT)
    w.load("b", WAIT, detached=True)
    w.load("b", PREEMPT, detached=True)
    w.run_checks()
    assert w.states["a"] is ModelState.PREEMPTING


def test_a_detached_load_alone_is_as_impatient_as_it_says() -> None:
    w = world(a=6, b=6)
    w.hold("a", WAIT)
    assert reason(w, w.load("b", FAIL, detached=True)) is Reason.CAPACITY_EXHAUSTED
    late = w.load("b", ContentionPolicy(Strategy.WAIT_THEN_FAIL, 1.0), detached=True)
    w.advance(1.0)
    assert reason(w, late) is Reason.WAIT_TIMEOUT


async def test_nothing_is_kept_for_the_answers_of_detached_loads() -> None:
    registry = Registry(models(a=6, b=6), FakeLoader(), LIMITS)
    lease = await registry.acquire(LeaseRequest("a", WAIT))
    for _ in range(100):
        assert (await registry.load("b", WAIT, detach=True)).model.state is ModelState.QUEUED
    assert registry.statistics().waiting == 1
    assert registry._answers == {}
    lease.release()
    async with asyncio.timeout(5):
        await registry.load("b")
        await registry.close()
