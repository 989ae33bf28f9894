"""What a load reserves: the stated estimate, else the files as they are now; and what the last load needed, if more.

Sizes in MiB, budget 10.
"""

from registry.world import World, reason

from fakes.resident import MIB, FakeLoader, entry
from inferd_server.core.errors import Reason
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.registry import inputs
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.policy import RegistryLimits
from inferd_server.registry.registry import Registry

WAIT = ContentionPolicy(Strategy.WAIT)
LIMITS = RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0, drain_busy_after_seconds=0.0)


def world(*, stated: bool = False, **sizes: int) -> World:
    return World([entry(name, mib, is_estimate_stated=stated) for name, mib in sizes.items()], LIMITS)


def ask(w: World, name: str, files: int | None = None) -> int:
    """A request whose check finds so many MiB of files."""
    number = w.ask(LeaseRequest(name, WAIT))
    for check in sorted(w.checks):
        w.finish_check(check, None, files * MIB if files else None)
    return number


def charged(w: World, name: str) -> int:
    residency = w.machine.residency
    return residency.nbytes(residency.models[name].current) // MIB


def unload(w: World, name: str) -> None:
    w.unload(name, UnloadMode.DRAIN)
    w.run()
    assert w.states[name] is ModelState.UNLOADED


def test_an_unstated_size_is_measured_again_at_each_load() -> None:
    w = world(a=4)
    for files in (4, 6, 3):
        lease = ask(w, "a", files)
        assert charged(w, "a") == files
        w.run()
        assert w.machine.residency.models["a"].entry.estimated_bytes == files * MIB
        w.release(lease)
        unload(w, "a")


def test_a_stated_size_overrides_that_of_the_files() -> None:
    w = world(stated=True, a=4)
    ask(w, "a", 12)
    assert charged(w, "a") == 4


def test_files_that_grew_beyond_the_budget_fail_as_too_large_and_touch_nothing() -> None:
    w = world(a=6, b=6)
    w.release(w.hold("a", WAIT))
    refused = ask(w, "b", 11)
    assert reason(w, refused) is Reason.MODEL_TOO_LARGE
    assert w.refused[refused].facts["required_bytes"] == str(11 * MIB)
    assert (w.states["a"], w.states["b"]) == (ModelState.LOADED, ModelState.FAILED)
    w.advance(5.0)
    again = ask(w, "b", 5)  # they are as they should be again
    w.run()
    assert again in w.leases


def test_files_that_grew_evict_as_many_as_the_new_size_needs() -> None:
    w = world(a=3, b=3, c=3)
    for name in "ab":
        w.release(w.hold(name, WAIT))
    ask(w, "c", 6)
    assert (w.states["a"], w.states["b"]) == (ModelState.UNLOADING, ModelState.LOADED)


def test_a_reload_whose_files_grew_too_large_leaves_the_old_generation_serving() -> None:
    w = world(a=6)
    w.release(w.hold("a", WAIT))
    order = w.load("a", WAIT, reload=True)
    w.finish_check(*w.checks, nbytes=11 * MIB)
    assert reason(w, order) is Reason.MODEL_TOO_LARGE
    assert w.states["a"] is ModelState.LOADED
    assert w.machine.residency.models["a"].entry.estimated_bytes == 6 * MIB


def test_a_model_that_outgrew_its_estimate_reserves_what_it_needs_at_the_next_load() -> None:
    w = world(stated=True, a=4, b=5)
    lease = ask(w, "a", 6)
    w.finish_load(("a", 1), 6 * MIB)
    w.release(lease)
    unload(w, "a")
    w.hold("b", WAIT)
    ask(w, "a", 6)
    assert w.states["a"] is ModelState.QUEUED  # 4 would have fit
    assert w.machine.residency.models["a"].entry.estimated_bytes == 4 * MIB


def test_a_load_too_large_for_the_room_there_was_reserves_what_it_needs_at_the_next() -> None:
    w = world(stated=True, a=4, b=5)
    held = w.hold("b", WAIT)
    failed = ask(w, "a", 6)
    w.finish_load(("a", 1), 6 * MIB)
    assert reason(w, failed) is Reason.MODEL_TOO_LARGE
    w.run()
    w.advance(5.0)
    again = ask(w, "a", 6)
    assert w.states["a"] is ModelState.QUEUED
    w.release(held)
    w.run()
    assert again in w.leases


def test_what_a_load_needed_is_forgotten_with_its_files() -> None:
    w = world(stated=True, a=4)
    lease = ask(w, "a", 6)
    w.finish_load(("a", 1), 6 * MIB)
    w.release(lease)
    unload(w, "a")
    ask(w, "a", 5)
    assert charged(w, "a") == 4


def test_a_configuration_that_comes_before_the_load_counts_for_it() -> None:
    w = world(stated=True, a=6, b=6, c=3)
    held = w.hold("a", WAIT)
    w.hold("c", WAIT)
    w.ask(LeaseRequest("b", ContentionPolicy(Strategy.PREEMPT)))
    w.run_checks()
    assert w.states["a"] is ModelState.PREEMPTING  # 6 for b
    entries = [entry(name, mib, is_estimate_stated=True) for name, mib in {"a": 6, "b": 8, "c": 3}.items()]
    w.tell(inputs.EntriesReplaced(tuple(entries)))
    w.release(held)
    w.run()
    assert w.states["b"] is ModelState.QUEUED  # 6 would have fit
    assert w.states["c"] is ModelState.PREEMPTING


def test_a_configuration_that_changes_nothing_of_a_load_leaves_its_room_to_it() -> None:
    w = world(stated=True, a=6, b=6)
    w.hold("a", WAIT)
    w.ask(LeaseRequest("b", ContentionPolicy(Strategy.PREEMPT)))
    w.run_checks()
    entries = [entry(name, 6, is_estimate_stated=True, aliases=(f"{name}-too",)) for name in "ab"]
    w.tell(inputs.EntriesReplaced(tuple(entries)))
    assert w.states["a"] is ModelState.PREEMPTING
    assert w.machine.residency.models["b"].entry.aliases == ("b-too",)
    assert not w.checks


async def test_the_loaders_check_brings_the_size_of_the_files() -> None:
    loader = FakeLoader()
    registry = Registry([entry("a", 4)], loader, LIMITS)
    loader.files["a"] = loader.weights["a"] = 6 * MIB
    loaded = await registry.load("a")
    assert loaded.model.estimated_nbytes == loaded.model.charged_nbytes == 6 * MIB
    await registry.close()
