"""The shell on a real event loop, with a loader that opens nothing."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from fakes.resident import MIB, FakeLoader, entry
from inferd_server.core.errors import InferdError, Reason, engine_failed, model_corrupt, server_draining
from inferd_server.core.generation import Waiting, WaitState
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.registry.registry import Lease, LeaseRequest, ModelSnapshot, Registry, RegistryLimits

FAIL = ContentionPolicy(Strategy.FAIL)
WAIT = ContentionPolicy(Strategy.WAIT)
PREEMPT = ContentionPolicy(Strategy.PREEMPT)


def wants(name: str, policy: ContentionPolicy = WAIT, **facts: object) -> LeaseRequest:
    return LeaseRequest(name, policy, **facts)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], seconds: float = 2.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions here have no event of their own
            await asyncio.sleep(0.001)


@pytest.fixture
def loader() -> FakeLoader:
    return FakeLoader()


@pytest.fixture
async def registry(loader: FakeLoader) -> AsyncIterator[Registry]:
    """Models a, b of 6 MiB and small of 2, under a budget of 10."""
    entries = [entry("a", 6, aliases=("alias-a",)), entry("b", 6), entry("small", 2)]
    limits = RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0, drain_busy_after_seconds=0.0)
    registry = Registry(entries, loader, limits)
    yield registry
    async with asyncio.timeout(5):
        await registry.close()
    assert registry.snapshot().memory.used_nbytes == 0


def state(registry: Registry, name: str) -> ModelState:
    return registry.model(name).state


async def test_the_first_request_loads_the_model_and_the_next_gets_its_lease_at_once(
    registry: Registry, loader: FakeLoader
) -> None:
    async with await registry.acquire(wants("a")) as lease:
        assert lease.resident is loader.residents["a"]
        assert (lease.entry.name, lease.generation) == ("a", 1)
        second = registry.lease_now(wants("a"))
        assert second is not None
        second.release()
    assert loader.loads == ["a"]
    assert registry.lease_now(wants("b")) is None


async def test_waiters_share_one_load_that_survives_the_first_of_them(registry: Registry, loader: FakeLoader) -> None:
    gate = loader.hold("a")
    tasks = [asyncio.create_task(registry.acquire(wants("a"))) for _ in range(3)]
    await until(lambda: state(registry, "a") is ModelState.LOADING)
    tasks[0].cancel()
    gate.set()
    leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(leases[0], asyncio.CancelledError)
    assert loader.loads == ["a"]
    for lease in leases[1:]:
        assert isinstance(lease, Lease)
        lease.release()


async def test_an_idle_model_is_evicted_and_its_end_is_awaited_before_the_next_load(
    registry: Registry, loader: FakeLoader
) -> None:
    (await registry.acquire(wants("a"))).release()
    loader.residents["a"].close_gate.clear()
    task = asyncio.create_task(registry.acquire(wants("b", FAIL)))
    await until(lambda: state(registry, "a") is ModelState.UNLOADING)
    assert loader.loads == ["a"]
    loader.residents["a"].close_gate.set()
    (await task).release()
    assert state(registry, "a") is ModelState.UNLOADED


async def test_fail_is_refused_at_once_and_nothing_is_touched(registry: Registry, loader: FakeLoader) -> None:
    async with await registry.acquire(wants("a")):
        with pytest.raises(InferdError) as caught:
            await registry.acquire(wants("b", FAIL))
        assert caught.value.reason is Reason.CAPACITY_EXHAUSTED
        assert caught.value.facts["blocking_models"] == "a"
        assert loader.checks == ["a"]
        assert state(registry, "b") is ModelState.UNLOADED


async def test_wait_gets_room_when_the_lease_is_given_back(registry: Registry) -> None:
    lease = await registry.acquire(wants("a"))
    task = asyncio.create_task(registry.acquire(wants("b")))
    await asyncio.sleep(0.01)
    assert not task.done()
    lease.release()
    (await task).release()


async def test_a_waiter_cancelled_between_grant_and_wake_up_gives_the_lease_back(registry: Registry) -> None:
    task = asyncio.create_task(registry.acquire(wants("small")))
    changed = asyncio.Event()

    def cancel_when_loaded(snapshot: ModelSnapshot) -> None:
        if snapshot.state is ModelState.LOADED:
            changed.set()
            task.cancel()

    registry.subscribe(cancel_when_loaded)
    await changed.wait()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (registry.statistics().counters.grants, registry.statistics().leases) == (1, 0)


async def test_preempt_interrupts_and_the_interrupted_request_comes_back_after(
    registry: Registry, loader: FakeLoader
) -> None:
    victim = await registry.acquire(wants("a"))
    loader.residents["a"].on_interrupt = victim.release
    winner = await registry.acquire(wants("b", PREEMPT))
    assert victim.preemptions[0][0] == "b"
    resumed = asyncio.create_task(registry.acquire(wants("a", FAIL, interrupted=True, preemptions=victim.preemptions)))
    await asyncio.sleep(0.01)
    assert not resumed.done()
    winner.release()
    async with await resumed as lease:
        assert lease.generation == 2
        assert lease.preemptions[0][0] == "b"


async def test_a_failed_load_tells_every_waiter_the_same_and_gives_its_bytes_back(
    registry: Registry, loader: FakeLoader
) -> None:
    loader.load_errors["a"] = model_corrupt("a", "x.safetensors", "truncated")
    results = await asyncio.gather(*(registry.acquire(wants("a")) for _ in range(3)), return_exceptions=True)
    assert [getattr(result, "reason", None) for result in results] == [Reason.MODEL_CORRUPT] * 3
    snapshot = registry.model("alias-a")
    assert snapshot.state is ModelState.FAILED
    assert snapshot.last_error is not None
    assert snapshot.last_error[0] == "MODEL_CORRUPT"
    assert registry.snapshot().memory.used_nbytes == 0
    with pytest.raises(InferdError):
        await registry.acquire(wants("a"))
    assert loader.loads == ["a"]
    del loader.load_errors["a"]
    assert (await registry.load("a")).model.state is ModelState.LOADED
    assert registry.model("a").last_error is None


async def test_an_unknown_exception_of_a_load_keeps_its_text_to_itself(registry: Registry, loader: FakeLoader) -> None:
    loader.load_errors["a"] = ZeroDivisionError("secret")
    with pytest.raises(InferdError) as caught:
        await registry.acquire(wants("a"))
    assert caught.value.reason is Reason.MODEL_LOAD_FAILED
    assert "secret" not in caught.value.message


async def test_a_failed_check_evicts_nothing(registry: Registry, loader: FakeLoader) -> None:
    (await registry.acquire(wants("a"))).release()
    loader.check_errors["b"] = model_corrupt("b", "config.json", "unreadable")
    with pytest.raises(InferdError):
        await registry.acquire(wants("b"))
    assert state(registry, "a") is ModelState.LOADED
    assert loader.loads == ["a"]


async def test_a_dead_engine_fails_its_model_and_others_serve_on(registry: Registry, loader: FakeLoader) -> None:
    lease = await registry.acquire(wants("a"))
    async with await registry.acquire(wants("small")):
        loader.residents["a"].die(engine_failed("a"))
        assert state(registry, "a") is ModelState.FAILED
        assert registry.model("a").charged_nbytes == 6 * MIB
        lease.release()
        await until(lambda: registry.model("a").charged_nbytes == 0)
        assert loader.residents["a"].close_calls == 1
        assert registry.lease_now(wants("a")) is None
        with pytest.raises(InferdError) as caught:
            await registry.acquire(wants("a"))
        assert caught.value.reason is Reason.ENGINE_FAILED


async def test_a_failed_end_keeps_its_bytes_charged_and_others_serve_on(loader: FakeLoader) -> None:
    limits = RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0)
    registry = Registry([entry("a", 6), entry("small", 2)], loader, limits)
    (await registry.acquire(wants("a"))).release()
    loader.residents["a"].close_error = ZeroDivisionError("in unload")
    with pytest.raises(InferdError) as caught:
        await registry.unload("a", UnloadMode.DRAIN)
    assert caught.value.reason is Reason.ENGINE_FAILED
    assert (state(registry, "a"), registry.model("a").charged_nbytes) == (ModelState.FAILED, 6 * MIB)
    (await registry.acquire(wants("small"))).release()
    async with asyncio.timeout(2):
        await registry.close()  # it does not wait for what will never come
    assert registry.model("small").charged_nbytes == 0


async def test_unload_waits_until_the_memory_is_back_and_tells_what_came_back(
    registry: Registry, loader: FakeLoader
) -> None:
    lease = await registry.acquire(wants("a"))
    task = asyncio.create_task(registry.unload("a", UnloadMode.DRAIN))
    await asyncio.sleep(0.01)
    assert state(registry, "a") is ModelState.DRAINING
    lease.release()
    outcome = await task
    assert (outcome.model.state, outcome.freed_nbytes) == (ModelState.UNLOADED, 6 * MIB)
    assert (await registry.unload("a", UnloadMode.DRAIN)).freed_nbytes == 0


async def test_a_drain_that_takes_too_long_is_given_up_and_the_model_serves_again(registry: Registry) -> None:
    async with await registry.acquire(wants("a")):
        with pytest.raises(InferdError) as caught:
            await registry.unload("a", UnloadMode.DRAIN, 0.02)
        assert (caught.value.reason, caught.value.facts["running"]) == (Reason.DRAIN_TIMEOUT, "1")
        second = registry.lease_now(wants("a"))
        assert second is not None
        second.release()


async def test_force_aborts_the_requests_and_ends_the_tickets(registry: Registry, loader: FakeLoader) -> None:
    lease = await registry.acquire(wants("a"))
    loader.residents["a"].on_abort = lease.release
    outcome = await registry.unload("a", UnloadMode.FORCE)
    assert outcome.model.state is ModelState.UNLOADED
    error = loader.residents["a"].aborted_with
    assert error is not None
    assert error.reason is Reason.MODEL_UNLOADED


async def test_a_waiter_is_told_what_it_waits_for(registry: Registry, loader: FakeLoader) -> None:
    gate = loader.hold("b")
    lease = await registry.acquire(wants("a"))
    told: list[Waiting] = []
    task = asyncio.create_task(registry.acquire(wants("b"), told.append))
    await until(lambda: bool(told))
    assert told[0] == Waiting(WaitState.QUEUED, 0)
    lease.release()
    await until(lambda: told[-1].state is WaitState.LOADING)
    loader.loadings["b"].progress(1, 4)
    await until(lambda: told[-1].load_progress == 0.25)
    gate.set()
    (await task).release()


async def test_the_end_of_waiting_ends_every_ticket_and_serves_on_what_is_loaded(registry: Registry) -> None:
    lease = await registry.acquire(wants("a"))
    task = asyncio.create_task(registry.acquire(wants("b")))
    await asyncio.sleep(0)
    registry.end_waiting(server_draining())
    for waiter in (task, asyncio.create_task(registry.acquire(wants("b")))):
        with pytest.raises(InferdError) as caught:
            await waiter
        assert caught.value.reason is Reason.SERVER_DRAINING
    async with await registry.acquire(wants("a")):
        lease.release()


async def test_closing_abandons_a_load_under_way(loader: FakeLoader) -> None:
    registry = Registry([entry("a")], loader, RegistryLimits(10 * MIB, WAIT))
    loader.hold("a")
    task = asyncio.create_task(registry.acquire(wants("a")))
    await until(lambda: bool(loader.loads))
    async with asyncio.timeout(2):
        await registry.close()
    with pytest.raises(InferdError) as caught:
        await task
    assert caught.value.reason is Reason.SERVER_SHUTDOWN


async def test_a_load_that_hangs_is_bounded_and_stays_charged_until_it_ends(loader: FakeLoader) -> None:
    registry = Registry([entry("a", 6)], loader, RegistryLimits(10 * MIB, WAIT, load_timeout_seconds=0.02))
    closing = asyncio.Event()

    async def hang(*_: object) -> object:
        await closing.wait()
        raise model_corrupt("a", "x", "late")

    loader.load = hang  # type: ignore[assignment,method-assign]
    with pytest.raises(InferdError) as caught:
        await registry.acquire(wants("a"))
    assert caught.value.reason is Reason.LOAD_TIMEOUT
    assert (state(registry, "a"), registry.model("a").charged_nbytes) == (ModelState.FAILED, 6 * MIB)
    closing.set()
    await until(lambda: registry.model("a").charged_nbytes == 0)
    await registry.close()


async def test_a_detached_load_is_the_registrys_own(registry: Registry, loader: FakeLoader) -> None:
    outcome = await registry.load("a", detach=True)
    assert outcome.model.state is ModelState.QUEUED
    await until(lambda: state(registry, "a") is ModelState.LOADED)


async def test_validate_only_answers_and_changes_nothing(registry: Registry) -> None:
    (await registry.acquire(wants("a"))).release()
    fits = await registry.load("b", validate_only=True)
    assert (fits.fits, fits.evicted) == (True, ("a",))
    async with await registry.acquire(wants("a")):
        outcome = await registry.load("b", validate_only=True)
        assert (outcome.fits, outcome.missing_nbytes, outcome.blocking) == (False, 2 * MIB, ("a",))
    assert state(registry, "a") is ModelState.LOADED
    assert state(registry, "b") is ModelState.UNLOADED


async def test_a_reload_serves_on_the_old_generation_until_the_new_one_is_there(
    registry: Registry, loader: FakeLoader
) -> None:
    old = await registry.acquire(wants("small"))
    gate = loader.hold("small")
    task = asyncio.create_task(registry.load("small", reload=True))
    await until(lambda: loader.loads == ["small", "small"])
    between = registry.lease_now(wants("small"))
    assert between is not None
    assert between.generation == 1
    assert registry.model("small").charged_nbytes == 4 * MIB
    gate.set()
    assert (await task).model.generation == 2
    newer = registry.lease_now(wants("small"))
    assert newer is not None
    assert newer.generation == 2
    between.release()
    assert registry.model("small").charged_nbytes == 4 * MIB
    old.release()
    await until(lambda: registry.model("small").charged_nbytes == 2 * MIB)
    newer.release()


async def test_preloads_load_and_a_failed_one_does_not_stop_the_next(loader: FakeLoader) -> None:
    entries = [entry("a", preload=True), entry("b", preload=True)]
    loader.load_errors["a"] = model_corrupt("a", "x", "broken")
    registry = Registry(entries, loader, RegistryLimits(10 * MIB, WAIT))
    await registry.preload()
    assert (state(registry, "a"), state(registry, "b")) == (ModelState.FAILED, ModelState.LOADED)
    await registry.close()


async def test_a_lease_names_the_entry_that_its_instance_was_loaded_with(loader: FakeLoader) -> None:
    registry = Registry([entry("a", revision="1")], loader, RegistryLimits(10 * MIB, WAIT))
    (await registry.acquire(wants("a"))).release()
    await registry.replace_entries([entry("a", revision="2", aliases=("new",))])
    lease = registry.lease_now(wants(registry.resolve("new").name))
    assert lease is not None
    assert lease.entry.revision == "1"
    lease.release()
    await registry.load("a", reload=True)
    async with await registry.acquire(wants("a")) as lease:
        assert (lease.entry.revision, lease.generation) == ("2", 2)
    await registry.close()


async def test_a_removed_model_is_told_to_watchers_and_an_alias_can_be_pointed_elsewhere(loader: FakeLoader) -> None:
    registry = Registry([entry("a", aliases=("chat",)), entry("b")], loader, RegistryLimits(10 * MIB, WAIT))
    lease = await registry.acquire(wants(registry.resolve("chat").name))
    told: list[ModelSnapshot] = []
    unsubscribe = registry.subscribe(told.append)
    await registry.replace_entries([entry("b", aliases=("chat",))])
    assert registry.resolve("chat").name == "b"
    with pytest.raises(InferdError) as caught:
        registry.resolve("a")
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    assert caught.value.facts["configured_models"] == "b"
    assert lease.resident is loader.residents["a"]
    lease.release()
    await until(lambda: any(snapshot.removed for snapshot in told))
    unsubscribe()
    await registry.close()


async def test_nothing_holds_on_to_a_resident_that_was_closed(registry: Registry, loader: FakeLoader) -> None:
    (await registry.acquire(wants("a"))).release()
    resident = weakref.ref(loader.residents["a"])
    loader.residents.clear()
    await registry.unload("a", UnloadMode.DRAIN)
    await asyncio.sleep(0)
    assert resident() is None


async def test_while_it_is_loaded_an_entry_shows_the_files_it_was_loaded_from(registry: Registry) -> None:
    async with await registry.acquire(wants("a")):
        await registry.replace_entries([entry("a", 6, revision="2", max_queue=7)])
        served = registry.resolve("a")
        assert (served.revision, served.max_queue) == ("", 7)
        assert registry.model("a").entry == served
    await registry.unload("a", UnloadMode.FORCE)
    assert registry.resolve("a").revision == "2"


async def test_preload_may_be_asked_for_some_names_only(loader: FakeLoader) -> None:
    entries = [entry(name, 1, preload=True) for name in ("a", "b", "c")]
    registry = Registry(entries, loader, RegistryLimits(10 * MIB, WAIT))
    await registry.preload({"b", "unknown"})
    assert loader.loads == ["b"]
    await registry.preload()
    assert sorted(loader.loads) == ["a", "b", "c"]
    await registry.close()


async def test_a_load_takes_in_what_the_files_say_by_then(registry: Registry, loader: FakeLoader) -> None:
    (await registry.acquire(wants("a"))).release()
    loader.fresh["a"] = entry("a", 6, revision="new weights", context_length=77)
    assert registry.resolve("a").revision == ""  # loaded from the old ones
    await registry.load("a", reload=True)
    assert (registry.resolve("a").revision, registry.resolve("a").context_length) == ("new weights", 77)
    async with await registry.acquire(wants("a")) as lease:
        assert (lease.entry.revision, lease.generation) == ("new weights", 2)
