"""A preemption does not wait for the drain of an UnloadModel. Sizes in MiB, budget 10 unless stated."""

import pytest
from registry.world import World, models

from fakes.resident import MIB
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.registry import inputs
from inferd_server.registry.effects import AnswerUnload
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.policy import RegistryLimits

WAIT = ContentionPolicy(Strategy.WAIT)
PREEMPT = ContentionPolicy(Strategy.PREEMPT)
LATER = ContentionPolicy(Strategy.WAIT_THEN_PREEMPT, 30.0, 3.0)


def world(budget: int = 10, *, residency: float = 0.0, drain: float = 0.0, **sizes: int) -> World:
    limits = RegistryLimits(budget * MIB, WAIT, min_residency_seconds=residency, drain_busy_after_seconds=drain)
    return World(models(**sizes), limits)


def rival(w: World, policy: ContentionPolicy = PREEMPT) -> int:
    number = w.ask(LeaseRequest("b", policy))
    w.run_checks()
    return number


def come_back(w: World, number: int) -> int:
    """As serving does with an interrupted request."""
    record = w.granted[number].record
    w.release(number)
    return w.ask(LeaseRequest("a", WAIT, interrupted=True, preemptions=record.preemptions))


def test_a_preemption_interrupts_the_requests_of_a_model_that_drains_and_its_unload_is_answered() -> None:
    w = world(a=6, b=6)
    running = w.hold("a", WAIT)
    order = w.unload("a", UnloadMode.DRAIN)
    wanted = rival(w)
    assert w.states["a"] is ModelState.PREEMPTING
    resumed = come_back(w, running)
    assert order not in w.answered  # its memory is not back
    w.run()
    assert isinstance(w.answered[order], AnswerUnload)
    assert wanted in w.leases
    w.release(wanted)
    w.run()
    assert resumed in w.leases


def test_a_ticket_that_may_preempt_later_interrupts_a_drain_when_its_time_comes() -> None:
    w = world(a=6, b=6)
    w.hold("a", WAIT)
    w.unload("a", UnloadMode.DRAIN)
    rival(w, LATER)
    w.advance(2.9)
    assert w.states["a"] is ModelState.DRAINING
    w.advance(0.1)
    assert w.states["a"] is ModelState.PREEMPTING


def test_a_ticket_that_waits_leaves_a_drain_alone() -> None:
    w = world(a=6, b=6, drain=1.0)
    w.hold("a", WAIT)
    w.unload("a", UnloadMode.DRAIN)
    rival(w, WAIT)
    w.advance(60.0)
    assert w.states["a"] is ModelState.DRAINING


@pytest.mark.parametrize("shield", ["pinned", "unpreemptible", "young"])
def test_what_may_not_be_preempted_may_not_while_it_drains(shield: str) -> None:
    w = world(a=6, b=6, residency=2.0)
    w.hold("a", WAIT, preemptible=shield != "unpreemptible")
    if shield == "pinned":
        w.load("a", WAIT, pin=True)
    w.unload("a", UnloadMode.DRAIN)
    rival(w)
    assert w.states["a"] is ModelState.DRAINING
    w.advance(2.0)
    assert w.states["a"] is (ModelState.PREEMPTING if shield == "young" else ModelState.DRAINING)


def test_an_unload_goes_on_when_the_preemption_is_not_wanted_any_more() -> None:
    w = world(a=6, b=6)
    running = w.hold("a", WAIT)
    order = w.unload("a", UnloadMode.DRAIN)
    w.cancel(rival(w))
    assert w.states["a"] is ModelState.PREEMPTING
    w.release(running)
    w.run()
    assert order in w.answered
    assert w.states["a"] is ModelState.UNLOADED


def test_a_drain_that_takes_too_long_and_was_interrupted_serves_again_once_the_rival_left() -> None:
    w = world(a=6, b=6)
    w.hold("a", WAIT)
    order = w.unload("a", UnloadMode.DRAIN, 1.0)
    wanted = rival(w)
    w.advance(1.0)
    assert order in w.refused
    w.cancel(wanted)
    assert w.states["a"] is ModelState.LOADED


def test_the_older_generation_of_a_reload_ends_its_requests_on_the_weights_they_began_with() -> None:
    w = world(20, a=6, b=15)
    w.hold("a", WAIT)
    w.load("a", WAIT, reload=True)
    w.run()
    rival(w)
    w.advance(60.0)
    assert ("a", 1) in w.residents
    assert ("a", 1) not in w.interrupted


def test_an_unload_of_a_model_that_left_the_configuration_interrupts_nobody() -> None:
    w = world(a=6, b=6)
    w.hold("a", WAIT)
    w.unload("a", UnloadMode.DRAIN)
    w.tell(inputs.EntriesReplaced(tuple(models(b=6))))
    rival(w)
    assert w.states["a"] is ModelState.DRAINING


def test_a_model_that_left_the_configuration_is_neither_interrupted_nor_back_in_service() -> None:
    w = world(a=6, b=6, drain=1.0)
    running = w.hold("a", WAIT)
    wanted = rival(w, WAIT)
    w.advance(1.0)
    assert w.states["a"] is ModelState.DRAINING  # for the sake of fairness
    w.tell(inputs.EntriesReplaced(tuple(models(b=6))))
    w.cancel(wanted)
    preempting = rival(w)
    assert w.states["a"] is ModelState.DRAINING
    w.release(running)
    w.run()
    assert preempting in w.leases
    assert "a" not in w.machine.residency.models
