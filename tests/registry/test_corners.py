"""Promises that planted bugs broke unseen (tests/mutations). Budgets and sizes in MiB, loads by hand."""

from registry.world import World, models, reason

from fakes.resident import MIB, entry
from inferd_server.core.errors import Reason, engine_failed, model_corrupt
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.registry import inputs
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.policy import RegistryLimits
from inferd_server.registry.unloading import MAX_ORDERS

FAIL = ContentionPolicy(Strategy.FAIL)
WAIT = ContentionPolicy(Strategy.WAIT)
PREEMPT = ContentionPolicy(Strategy.PREEMPT)


def world(budget: int, *, drain: float = 0.0, **sizes: int) -> World:
    limits = RegistryLimits(budget * MIB, WAIT, min_residency_seconds=0.0, drain_busy_after_seconds=drain)
    return World(models(**sizes), limits)


def hold_and_release(w: World, name: str) -> None:
    """Load a model and leave it idle."""
    w.release(w.hold(name, WAIT))


def test_bytes_that_come_for_one_group_are_promised_to_no_other() -> None:
    w = world(10, a=6, b=6, c=4, d=2)
    hold_and_release(w, "a")
    w.hold("c", WAIT)
    w.unload("a", UnloadMode.DRAIN)
    waiting = w.ask(LeaseRequest("b", WAIT))
    w.run_checks()
    hopeless = w.ask(LeaseRequest("d", FAIL))
    w.run_checks()
    assert reason(w, hopeless) is Reason.CAPACITY_EXHAUSTED
    w.run()
    assert waiting in w.leases


def test_bytes_that_a_victim_gives_to_its_claim_come_to_nobody_else() -> None:
    w = world(10, a=6, b=6, c=4, d=2)
    hold_and_release(w, "a")
    w.hold("c", WAIT)
    claimant = w.ask(LeaseRequest("b", WAIT))
    w.run_checks()
    assert w.unloads
    hopeless = w.ask(LeaseRequest("d", FAIL))
    w.run_checks()
    assert reason(w, hopeless) is Reason.CAPACITY_EXHAUSTED
    w.run()
    assert claimant in w.leases


def test_a_load_larger_than_reserved_loses_nothing_to_others_while_it_waits_for_the_rest() -> None:
    w = world(11, a=6, grown=4, small=1)
    hold_and_release(w, "a")
    larger = w.ask(LeaseRequest("grown", WAIT))
    w.run_checks()
    w.finish_load(("grown", 1), 11 * MIB)
    assert w.unloads == {("a", 1)}
    hopeless = w.ask(LeaseRequest("small", FAIL))
    w.run_checks()
    assert reason(w, hopeless) is Reason.CAPACITY_EXHAUSTED
    w.finish_unload(("a", 1))
    assert larger in w.leases


def test_preempt_fails_at_once_where_a_pinned_model_is_being_loaded() -> None:
    w = World([entry("a", 6, pinned=True), entry("b", 6)], RegistryLimits(10 * MIB, WAIT))
    w.ask(LeaseRequest("a", WAIT))
    w.run_checks()
    assert w.loads
    assert reason(w, w.ask(LeaseRequest("b", PREEMPT))) is Reason.CAPACITY_EXHAUSTED


def test_the_first_tickets_priority_keeps_the_room_not_the_last_ones() -> None:
    w = world(10, a=6, b=6, e=10)
    w.hold("a", WAIT)
    w.ask(LeaseRequest("b", WAIT, priority=10))
    w.ask(LeaseRequest("b", WAIT, priority=0))
    rival = w.ask(LeaseRequest("e", PREEMPT, priority=5))
    w.run_checks()
    assert rival in w.asked
    assert not w.interrupted


def test_time_spent_waiting_for_a_drain_is_not_told_as_loading() -> None:
    w = world(10, a=6)
    first = w.ask(LeaseRequest("a", WAIT))
    w.run_checks()
    w.now += 2.0
    w.run()
    assert w.granted[first].loading_seconds == 2.0
    w.unload("a", UnloadMode.DRAIN, 3.0)
    second = w.ask(LeaseRequest("a", WAIT))
    w.advance(3.0)
    assert w.granted[second].waited_seconds == 3.0
    assert w.granted[second].loading_seconds == 0.0


def test_one_who_asks_late_is_told_his_own_part_of_the_load() -> None:
    w = world(10, a=6)
    w.ask(LeaseRequest("a", WAIT))
    w.run_checks()
    w.now += 2.0
    late = w.ask(LeaseRequest("a", WAIT))
    w.now += 1.0
    w.run()
    assert w.granted[late].loading_seconds == 1.0


def test_a_lease_that_comes_back_twice_counts_once() -> None:
    w = world(10, a=6)
    lease = w.hold("a", WAIT)
    other = w.hold("a", WAIT)
    w.release(lease)
    w.tell(inputs.Released(lease))
    assert list(w.leases) == [other]


def test_an_interrupted_request_knows_by_whom_and_when() -> None:
    w = world(10, a=6, b=6)
    lease = w.hold("a", WAIT)
    w.ask(LeaseRequest("b", PREEMPT))
    w.run_checks()
    assert w.granted[lease].record.preemptions == (("b", w.now),)


def test_a_claim_on_an_engine_that_died_looks_for_room_elsewhere() -> None:
    w = world(10, drain=1.0, a=6, x=4, y=4)
    w.hold("a", WAIT)
    busy = w.hold("x", WAIT)
    waiting = w.ask(LeaseRequest("y", WAIT))
    w.run_checks()
    w.advance(1.0)
    assert w.states["a"] is ModelState.DRAINING
    w.die(("a", 1), engine_failed("a"))  # its request holds its lease for long
    w.release(busy)
    w.run()
    assert waiting in w.leases


def test_engines_that_die_again_and_again_are_left_alone_for_longer() -> None:
    w = world(10, a=6)
    for backoff_seconds in (1.0, 2.0, 4.0):
        lease = w.hold("a", WAIT)
        w.die(("a", w.granted[lease].generation), engine_failed("a"))
        w.release(lease)
        w.run()
        w.advance(backoff_seconds - 0.1)
        assert reason(w, w.ask(LeaseRequest("a", WAIT))) is Reason.ENGINE_FAILED
        w.advance(0.1)


def test_a_model_may_be_preempted_once_the_request_that_nobody_may_interrupt_has_ended() -> None:
    w = world(10, a=6, b=6)
    w.hold("a", WAIT)
    protected = w.hold("a", WAIT, preemptible=False)
    w.release(protected)
    w.ask(LeaseRequest("b", PREEMPT))
    w.run_checks()
    assert w.interrupted == {("a", 1)}


def test_a_load_larger_than_reserved_waits_until_all_of_the_rest_has_come() -> None:
    w = world(10, a=3, b=3, grown=4)
    hold_and_release(w, "a")
    hold_and_release(w, "b")
    larger = w.ask(LeaseRequest("grown", WAIT))
    w.run_checks()
    w.finish_load(("grown", 1), 10 * MIB)
    w.finish_unload(("a", 1))
    assert larger in w.asked
    w.finish_unload(("b", 1))
    assert larger in w.leases


def test_a_check_of_those_who_left_says_nothing_to_those_who_came() -> None:
    w = world(10, a=6)
    w.cancel(w.ask(LeaseRequest("a", WAIT)))
    waiting = w.ask(LeaseRequest("a", WAIT))
    w.finish_check(("a", 1), model_corrupt("a", "weights", "an older look"))
    assert waiting in w.asked
    w.run()
    assert waiting in w.leases


def test_an_unload_whose_end_is_not_proved_is_answered_with_the_reason() -> None:
    w = world(10, a=6)
    hold_and_release(w, "a")
    order = w.unload("a", UnloadMode.DRAIN)
    w.tell(inputs.UnloadFailed("a", 1, engine_failed("a")))
    assert reason(w, order) is Reason.ENGINE_FAILED
    assert w.machine.residency.ledger.used_nbytes == 6 * MIB


def test_a_preemption_takes_no_idle_model_that_is_kept_for_the_head() -> None:
    w = world(10, idle=4, busy=6, head=10, later=4)
    hold_and_release(w, "idle")
    w.hold("busy", WAIT, preemptible=False)
    head = w.ask(LeaseRequest("head", WAIT))
    w.run_checks()
    later = w.ask(LeaseRequest("later", PREEMPT))
    w.run_checks()
    assert w.machine.residency.models["idle"].state is ModelState.LOADED
    assert head not in w.leases
    assert later not in w.leases


def test_orders_to_drain_are_bounded_and_a_forced_one_is_still_taken() -> None:
    w = world(10, a=6)
    held = w.hold("a", WAIT)
    orders = [w.unload("a", UnloadMode.DRAIN) for _ in range(MAX_ORDERS)]
    assert reason(w, w.unload("a", UnloadMode.DRAIN)) is Reason.QUEUE_FULL
    forced = w.unload("a", UnloadMode.FORCE)
    w.release(held)
    w.run()
    assert {*orders, forced} <= w.answered.keys()
