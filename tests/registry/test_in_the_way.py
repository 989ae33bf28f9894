"""CAPACITY_EXHAUSTED names who is in the way, whoever it is. Sizes in MiB, budget 10."""

from registry.world import World, models

from fakes.resident import MIB
from inferd_server.core.errors import Reason
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.policy import RegistryLimits

FAIL = ContentionPolicy(Strategy.FAIL)
WAIT = ContentionPolicy(Strategy.WAIT)


def world(*, residency: float = 0.0, **sizes: int) -> World:
    return World(
        models(**sizes),
        RegistryLimits(10 * MIB, WAIT, min_residency_seconds=residency, drain_busy_after_seconds=0.0),
    )


def blocking(w: World, name: str) -> str:
    """Who is in the way of a model that is wanted now or not at all."""
    error = w.refused[w.ask(LeaseRequest(name, FAIL))]
    assert error.reason is Reason.CAPACITY_EXHAUSTED
    return str(error.facts["blocking_models"])


def test_a_model_that_leaves_for_another_is_told_that_the_other_is_in_the_way() -> None:
    w = world(a=6, b=6, c=2)
    w.hold("c", WAIT)
    w.release(w.hold("a", WAIT))
    w.ask(LeaseRequest("b", WAIT))
    w.run_checks()
    assert w.states["a"] is ModelState.UNLOADING
    assert blocking(w, "a") == "b,c"


def test_a_model_too_young_to_be_evicted_is_in_the_way() -> None:
    w = world(a=6, b=6, residency=2.0)
    w.release(w.hold("a", WAIT))
    assert blocking(w, "b") == "a"


def test_a_model_for_which_idle_ones_are_kept_is_in_the_way() -> None:
    w = world(a=6, b=6, c=6)
    w.release(w.hold("a", WAIT))
    w.ask(LeaseRequest("b", WAIT))  # its files are being checked
    assert blocking(w, "c") == "b"


def test_a_model_that_drains_is_in_its_own_way_if_nobody_else_is() -> None:
    w = world(a=6)
    w.hold("a", WAIT)
    w.unload("a", UnloadMode.DRAIN)
    assert blocking(w, "a") == "a"


def test_whoever_waits_for_what_is_leaving_already_is_in_the_way() -> None:
    w = world(a=6, b=6)
    w.release(w.hold("a", WAIT))
    w.unload("a", UnloadMode.DRAIN)
    w.ask(LeaseRequest("b", WAIT))
    w.run_checks()
    assert blocking(w, "a") == "b"
