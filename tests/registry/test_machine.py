"""The machine's promises one by one, with a virtual clock. Budget 10 MiB; a needs 6, b 6, c 4, d 2, e 10."""

import math

import pytest
from registry.world import World, reason

from fakes.resident import MIB, entry
from inferd_server.core.errors import Reason, engine_failed, model_corrupt, server_draining
from inferd_server.core.generation import WaitState
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.registry import effects, inputs
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.placement import Probe
from inferd_server.registry.policy import RegistryLimits

FAIL = ContentionPolicy(Strategy.FAIL)
WAIT = ContentionPolicy(Strategy.WAIT)
PREEMPT = ContentionPolicy(Strategy.PREEMPT)
WAIT_THEN_FAIL = ContentionPolicy(Strategy.WAIT_THEN_FAIL, wait_timeout_seconds=3.0)
WAIT_THEN_PREEMPT = ContentionPolicy(Strategy.WAIT_THEN_PREEMPT, wait_timeout_seconds=3.0, preempt_after_seconds=1.0)
EVERY_POLICY = (FAIL, WAIT, PREEMPT, WAIT_THEN_FAIL, WAIT_THEN_PREEMPT)
SIZES = {"a": 6, "b": 6, "c": 4, "d": 2, "e": 10}


def world(*, residency: float = 0.0, drain: float = 0.0, budget: int = 10, **facts: dict[str, object]) -> World:
    entries = [entry(name, mib, **facts.get(name, {})) for name, mib in SIZES.items()]
    limits = RegistryLimits(
        budget * MIB,
        WAIT,
        min_residency_seconds=residency,
        drain_busy_after_seconds=drain,
        load_timeout_seconds=60.0,
    )
    return World(entries, limits)


def wants(name: str, policy: ContentionPolicy = WAIT, **facts: object) -> LeaseRequest:
    return LeaseRequest(name, policy, **facts)  # type: ignore[arg-type]


def state(w: World, name: str) -> ModelState:
    return w.machine.residency.models[name].state


def give_back_interrupted(w: World) -> None:
    """What serving does when streams end with Interrupted."""
    for number, (key, _) in list(w.leases.items()):
        if key in w.interrupted:
            w.release(number)


# --- leases and loads --------------------------------------------------------------------------------------------


def test_a_request_for_a_loaded_model_gets_its_lease_at_once_even_while_others_wait() -> None:
    w = world()
    w.hold("a", WAIT)
    blocked = w.ask(wants("b"))
    second = w.ask(wants("a", FAIL))
    assert second in w.leases
    assert blocked in w.asked


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=lambda policy: policy.strategy)
def test_whatever_the_strategy_an_absent_model_that_fits_is_loaded_once_for_all_its_tickets(policy) -> None:
    w = world()
    numbers = [w.ask(wants("a", policy)) for _ in range(3)]
    w.run()
    assert set(w.leases) == set(numbers)
    assert w.machine.residency.counters.loads == 1


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=lambda policy: policy.strategy)
def test_whatever_the_strategy_an_idle_model_makes_room(policy) -> None:
    w = world()
    w.release(w.hold("a", WAIT))
    number = w.ask(wants("b", policy))
    w.run()
    assert number in w.leases
    assert state(w, "a") is ModelState.UNLOADED


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=lambda policy: policy.strategy)
def test_whatever_the_strategy_a_model_larger_than_the_budget_is_refused_and_nothing_is_touched(policy) -> None:
    w = world(budget=8)
    w.release(w.hold("a", WAIT))
    number = w.ask(wants("e", policy))
    assert reason(w, number) is Reason.MODEL_TOO_LARGE
    assert state(w, "a") is ModelState.LOADED


def test_a_request_that_forbids_a_load_is_refused_unless_the_model_is_loaded() -> None:
    w = world()
    assert reason(w, w.ask(wants("a", load_if_needed=False))) is Reason.MODEL_NOT_LOADED
    w.hold("a", WAIT)
    assert w.ask(wants("a", load_if_needed=False)) in w.leases


def test_the_split_of_a_wait_says_how_long_the_load_took() -> None:
    w = world()
    holder = w.hold("a", WAIT)
    number = w.ask(wants("b"))
    w.advance(2.0)
    w.release(holder)
    w.finish_check(("b", 1))
    w.finish_unload(("a", 1))
    w.advance(3.0)
    w.finish_load(("b", 1))
    assert (w.granted[number].waited_seconds, w.granted[number].loading_seconds) == (5.0, 3.0)


# --- the strategies, when only a busy model is in the way --------------------------------------------------------


def test_fail_is_refused_at_once_with_the_numbers() -> None:
    w = world()
    w.hold("a", WAIT)
    number = w.ask(wants("b", FAIL))
    assert reason(w, number) is Reason.CAPACITY_EXHAUSTED
    facts = w.refused[number].facts
    assert (facts["blocking_models"], facts["required_bytes"], facts["charged_bytes"], facts["limit_bytes"]) == (
        "a",
        str(6 * MIB),
        str(6 * MIB),
        str(10 * MIB),
    )
    assert not w.checks
    assert state(w, "b") is ModelState.UNLOADED


def test_fail_evicts_no_idle_model_in_vain() -> None:
    w = world()
    w.hold("a", WAIT)
    w.release(w.hold("d", WAIT))
    assert reason(w, w.ask(wants("b", FAIL))) is Reason.CAPACITY_EXHAUSTED
    assert state(w, "d") is ModelState.LOADED


def test_fail_joins_a_load_already_under_way() -> None:
    w = world()
    w.ask(wants("a"))
    w.finish_check(("a", 1))
    number = w.ask(wants("a", FAIL))
    w.run()
    assert number in w.leases


def test_wait_waits_for_ever() -> None:
    w = world()
    holder = w.hold("a", WAIT)
    number = w.ask(wants("b", WAIT))
    w.finish_check(("b", 1))
    w.advance(100_000.0)
    assert number in w.asked
    w.release(holder)
    w.run()
    assert number in w.leases


def test_preempt_interrupts_at_once_and_the_room_is_reserved_for_it() -> None:
    w = world()
    victim = w.hold("a", WAIT)
    number = w.ask(wants("b", PREEMPT))
    w.finish_check(("b", 1))
    assert state(w, "a") is ModelState.PREEMPTING
    assert w.interrupted == {("a", 1)}
    w.release(victim)
    resumed = w.ask(wants("a", PREEMPT, interrupted=True, priority=100))
    w.run()
    assert number in w.leases
    assert resumed in w.asked
    w.release(number)
    w.run()
    assert resumed in w.leases


def test_wait_then_fail_gives_up_at_its_time_and_not_before() -> None:
    w = world()
    w.hold("a", WAIT)
    number = w.ask(wants("b", WAIT_THEN_FAIL))
    w.advance(2.99)
    assert number in w.asked
    assert w.machine.next_wake() == pytest.approx(103.0)
    w.advance(0.01)
    assert reason(w, number) is Reason.WAIT_TIMEOUT
    assert w.refused[number].facts["waited_ms"] == "3000"
    assert w.refused[number].facts["queue_position"] == "0"


def test_wait_then_preempt_preempts_at_its_time_and_not_before() -> None:
    w = world()
    w.hold("a", WAIT)
    number = w.ask(wants("b", WAIT_THEN_PREEMPT))
    w.finish_check(("b", 1))
    w.advance(0.99)
    assert state(w, "a") is ModelState.LOADED
    w.advance(0.01)
    assert state(w, "a") is ModelState.PREEMPTING
    give_back_interrupted(w)
    w.run()
    assert number in w.leases


def test_wait_then_preempt_gives_up_when_nothing_may_be_interrupted() -> None:
    w = world()
    w.hold("a", WAIT, preemptible=False)
    number = w.ask(wants("b", WAIT_THEN_PREEMPT))
    w.finish_check(("b", 1))
    w.advance(2.5)
    assert number in w.asked
    w.advance(0.5)
    assert reason(w, number) is Reason.WAIT_TIMEOUT
    assert not w.interrupted


def test_a_wait_for_room_is_bounded_and_a_load_by_its_own_limit() -> None:
    w = world()
    number = w.ask(wants("a", WAIT_THEN_FAIL))
    w.finish_check(("a", 1))
    w.advance(10.0)
    assert number in w.asked
    w.finish_load(("a", 1))
    assert number in w.leases


# --- planning ----------------------------------------------------------------------------------------------------


def test_idle_models_go_least_recently_used_first_and_each_one_not_needed_is_spared() -> None:
    sizes = {"old": 3, "middle": 2, "new": 5, "want": 6}
    w = World(
        [entry(name, mib) for name, mib in sizes.items()], RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0)
    )
    for name in ("old", "middle", "new"):
        w.release(w.hold(name, WAIT))
        w.advance(1.0)
    w.ask(wants("want"))
    w.finish_check(("want", 1))
    # old, middle, new would free 10; the newest is needed for 6, the middle one is not.
    assert {name for name, _ in w.unloads} == {"old", "new"}


def test_looking_at_a_model_is_no_use_of_it() -> None:
    w = world()
    w.release(w.hold("c", WAIT))
    w.advance(1.0)
    w.release(w.hold("d", WAIT))
    w.machine.probe("c", WAIT, w.now)
    w.ask(wants("b"))
    w.finish_check(("b", 1))
    assert {name for name, _ in w.unloads} == {"c"}


def test_a_model_just_loaded_is_left_alone_for_its_first_seconds() -> None:
    w = world(residency=2.0)
    w.release(w.hold("a", WAIT))
    number = w.ask(wants("b", PREEMPT))
    w.finish_check(("b", 1))
    w.advance(1.9)
    assert state(w, "a") is ModelState.LOADED
    w.advance(0.1)
    assert state(w, "a") is ModelState.UNLOADING
    w.run()
    assert number in w.leases


def test_a_pinned_model_is_never_evicted_nor_preempted() -> None:
    w = world(a={"pinned": True})
    w.release(w.hold("a", WAIT))
    assert reason(w, w.ask(wants("b", FAIL))) is Reason.CAPACITY_EXHAUSTED
    assert reason(w, w.ask(wants("b", PREEMPT))) is Reason.CAPACITY_EXHAUSTED
    assert state(w, "a") is ModelState.LOADED


def test_preempt_blocked_by_a_request_that_nobody_may_interrupt_fails_at_once() -> None:
    w = world()
    w.hold("a", WAIT, preemptible=False)
    assert reason(w, w.ask(wants("b", PREEMPT))) is Reason.CAPACITY_EXHAUSTED


def test_preempt_blocked_for_a_while_waits() -> None:
    w = world(residency=5.0)
    w.hold("a", WAIT)
    number = w.ask(wants("b", PREEMPT))
    w.finish_check(("b", 1))
    assert number in w.asked
    w.advance(5.0)
    assert state(w, "a") is ModelState.PREEMPTING


def test_victims_are_the_lowest_priority_then_the_least_work_then_the_least_recently_used() -> None:
    w = world()
    w.hold("c", WAIT, priority=5)
    w.hold("d", WAIT, work_done=lambda: 9)
    other = World(
        [entry("x", 3), entry("y", 3), entry("z", 3), entry("w", 4)],
        RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0),
    )
    other.hold("x", WAIT, work_done=lambda: 9)
    other.advance(1.0)
    other.hold("y", WAIT, work_done=lambda: 2)
    other.advance(1.0)
    other.hold("z", WAIT, work_done=lambda: 2)
    other.ask(wants("w", PREEMPT))
    other.finish_check(("w", 1))
    assert other.interrupted == {("y", 1)}
    w.ask(wants("b", PREEMPT))
    w.finish_check(("b", 1))
    assert w.interrupted == {("d", 1)}


def test_preemption_touches_nothing_unless_the_plan_reaches_a_fit() -> None:
    w = world()
    w.hold("c", WAIT)
    w.hold("d", WAIT, preemptible=False)
    w.ask(wants("e", PREEMPT))
    assert not w.interrupted


def test_a_rival_leaves_a_request_alone_that_it_preempted_three_times_within_a_minute() -> None:
    w = world()
    history = tuple(("b", 100.0 + at) for at in (0.0, 1.0, 2.0))
    w.now = 103.0
    w.hold("a", WAIT, preemptions=history)
    w.ask(wants("b", PREEMPT))
    w.finish_check(("b", 1))
    assert not w.interrupted
    w.advance(56.9)
    assert not w.interrupted
    w.advance(0.2)
    assert w.interrupted == {("a", 1)}


def test_an_interrupted_ticket_waits_whatever_its_strategy_and_interrupts_nobody() -> None:
    w = world()
    w.hold("a", WAIT)
    for policy in (FAIL, PREEMPT, WAIT_THEN_FAIL):
        number = w.ask(wants("b", policy, interrupted=True, load_if_needed=False))
        w.advance(100.0)
        assert number in w.asked
    assert not w.interrupted


def test_a_victim_serves_again_when_the_ticket_it_was_interrupted_for_goes_away() -> None:
    w = world()
    w.hold("a", WAIT)
    rival = w.ask(wants("b", PREEMPT))
    w.finish_check(("b", 1))
    late = w.ask(wants("a"))
    assert late in w.asked
    w.cancel(rival)
    assert state(w, "a") is ModelState.LOADED
    assert not w.interrupted
    assert late in w.leases


# --- the queue ---------------------------------------------------------------------------------------------------


def test_later_tickets_pass_the_head_only_if_that_does_not_delay_it() -> None:
    w = world(drain=0.0)
    w.hold("a", WAIT)  # 6 of 10
    head = w.ask(wants("b"))  # needs 6, lacks 2
    w.finish_check(("b", 1))
    small = w.ask(wants("c"))  # needs 4: with a gone, 6 stay: no delay
    w.run()
    assert small in w.leases
    assert head in w.asked
    other = world()
    holder = other.hold("a", WAIT)
    other.ask(wants("e"))  # needs all 10
    delayed = other.ask(wants("d"))
    other.run()
    assert delayed in other.asked
    other.release(holder)
    other.run()
    assert delayed in other.asked


def test_a_higher_priority_goes_first_and_a_long_wait_outranks_it() -> None:
    w = world()
    holder = w.hold("e", WAIT)
    low = w.ask(wants("a", priority=0))
    w.advance(5.0)
    high = w.ask(wants("b", priority=1))
    w.run_checks()
    assert w.machine.waiting(high) == (WaitState.QUEUED, 0)
    assert w.machine.waiting(low) == (WaitState.QUEUED, 1)
    w.advance(6.0)
    later = w.ask(wants("b", priority=1))
    assert w.machine.waiting(later) == (WaitState.QUEUED, 2)
    w.release(holder)
    w.run()
    assert high in w.leases
    assert later in w.leases
    assert low in w.asked


def test_a_queued_load_without_tickets_is_dropped_and_a_running_one_is_finished() -> None:
    w = world()
    w.cancel(w.ask(wants("a")))
    assert state(w, "a") is ModelState.UNLOADED
    number = w.ask(wants("a"))
    w.run_checks()
    w.cancel(number)
    w.run()
    assert state(w, "a") is ModelState.LOADED


def test_a_load_that_nobody_waits_for_is_abandoned_when_another_ticket_needs_its_room() -> None:
    w = world()
    number = w.ask(wants("a"))
    w.run_checks()
    w.cancel(number)
    other = w.ask(wants("b", FAIL))
    w.run_checks()
    assert w.loads == {("a", 1): True}
    assert state(w, "a") is ModelState.UNLOADING
    w.run()
    assert other in w.leases


def test_a_load_that_somebody_waits_for_is_never_abandoned() -> None:
    w = world()
    first = w.ask(wants("a"))
    w.run_checks()
    assert reason(w, w.ask(wants("b", FAIL))) is Reason.CAPACITY_EXHAUSTED
    w.run()
    assert first in w.leases


# --- fairness ----------------------------------------------------------------------------------------------------


def test_under_steady_traffic_the_head_gets_its_turn_after_drain_busy_and_the_longest_request() -> None:
    w = world(drain=5.0)
    running = [w.hold("a", WAIT)]
    head = w.ask(wants("b", WAIT))
    w.run_checks()
    waiting_for_a: list[int] = []
    for second in range(12):
        w.advance(1.0)
        newcomer = w.ask(wants("a", WAIT))
        if newcomer in w.leases:
            running.append(newcomer)
        else:
            waiting_for_a.append(newcomer)
        if running and second >= 2:  # each request runs for three seconds
            w.release(running.pop(0))
        w.run()
        if head in w.leases:
            break
    assert head in w.leases
    assert w.now - 100.0 <= 5.0 + 4.0
    assert waiting_for_a
    assert not w.interrupted
    w.release(head)
    w.run()
    assert set(waiting_for_a) <= set(w.leases)


def test_a_drained_model_serves_again_when_the_head_leaves() -> None:
    w = world(drain=5.0)
    w.hold("a", WAIT)
    head = w.ask(wants("b", WAIT))
    w.run_checks()
    w.advance(5.0)
    assert state(w, "a") is ModelState.DRAINING
    late = w.ask(wants("a", WAIT))
    w.cancel(head)
    assert state(w, "a") is ModelState.LOADED
    assert late in w.leases


def test_a_drain_becomes_a_preemption_when_the_heads_time_to_preempt_comes() -> None:
    w = world(drain=0.5)
    w.hold("a", WAIT)
    number = w.ask(wants("b", WAIT_THEN_PREEMPT))
    w.run_checks()
    w.advance(0.5)
    assert state(w, "a") is ModelState.DRAINING
    w.advance(0.5)
    assert state(w, "a") is ModelState.PREEMPTING
    give_back_interrupted(w)
    w.run()
    assert number in w.leases


def test_a_head_that_is_due_is_passed_by_no_preemption() -> None:
    w = world(drain=5.0, residency=0.0)
    w.hold("a", WAIT, preemptible=False)
    head = w.ask(wants("b", WAIT))
    w.run_checks()
    w.advance(6.0)
    assert state(w, "a") is ModelState.DRAINING
    w.ask(wants("e", PREEMPT))
    w.run_checks()
    give_back_interrupted(w)
    for lease in list(w.leases):
        w.release(lease)
    w.run()
    assert head in w.leases


def test_no_preemption_takes_the_room_that_a_due_head_is_about_to_drain() -> None:
    w = world(drain=1.0, residency=10.0)
    w.hold("c", WAIT)
    w.advance(10.0)
    w.hold("a", WAIT)  # too young to be drained
    w.ask(wants("e", WAIT))
    w.run_checks()
    w.advance(2.0)
    w.ask(wants("d", PREEMPT))
    w.run_checks()
    assert not w.interrupted
    w.advance(8.0)
    assert (state(w, "a"), state(w, "c")) == (ModelState.DRAINING, ModelState.DRAINING)


def test_a_head_that_no_drain_can_help_holds_nobody_up() -> None:
    w = world(drain=1.0, d={"pinned": True})
    w.hold("d", WAIT)
    w.hold("a", WAIT)
    w.ask(wants("e", WAIT))
    w.run_checks()
    w.advance(2.0)
    w.ask(wants("b", WAIT))
    w.run_checks()
    w.advance(1.0)
    assert state(w, "a") is ModelState.DRAINING
    w.ask(wants("b", PREEMPT))
    assert w.interrupted == {("a", 1)}


def test_a_model_that_drains_for_long_holds_no_later_ticket_up() -> None:
    w = world(drain=1.0)
    w.hold("c", WAIT)
    w.hold("a", WAIT)
    w.unload("c", UnloadMode.DRAIN)
    w.ask(wants("c", WAIT))
    number = w.ask(wants("b", WAIT))
    w.run_checks()
    w.advance(2.0)
    assert state(w, "a") is ModelState.DRAINING
    w.release(1 + min(w.leases))
    w.run()
    assert number in w.leases


# --- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_load_answers_every_waiter_and_frees_its_bytes_and_is_retried_after_the_backoff() -> None:
    w = world()
    numbers = [w.ask(wants("a")) for _ in range(3)]
    w.run_checks()
    w.fail_load(("a", 1), model_corrupt("a", "x", "broken"))
    assert {reason(w, number) for number in numbers} == {Reason.MODEL_CORRUPT}
    assert w.machine.residency.ledger.used_nbytes == 0
    assert reason(w, w.ask(wants("a"))) is Reason.MODEL_CORRUPT
    w.advance(1.0)
    assert w.ask(wants("a")) in w.asked
    w.run_checks()
    w.fail_load(("a", 2), model_corrupt("a", "x", "broken"))
    w.advance(1.5)
    assert reason(w, w.ask(wants("a"))) is Reason.MODEL_CORRUPT
    w.advance(0.5)
    assert w.ask(wants("a")) in w.asked


def test_an_explicit_load_retries_a_failed_model_at_once_and_its_success_clears_the_error() -> None:
    w = world()
    w.ask(wants("a"))
    w.run_checks()
    w.fail_load(("a", 1), model_corrupt("a", "x", "broken"))
    number = w.load("a", WAIT)
    w.run()
    assert number in w.answered
    assert w.machine.residency.models["a"].failure is None


def test_a_check_that_fails_evicts_nothing() -> None:
    w = world()
    w.release(w.hold("a", WAIT))
    number = w.ask(wants("b"))
    w.unload("d", UnloadMode.DRAIN)
    w.cancel(w.ask(wants("d")))  # plans are made again meanwhile
    assert state(w, "a") is ModelState.LOADED
    w.finish_check(("b", 1), model_corrupt("b", "config.json", "unreadable"))
    assert reason(w, number) is Reason.MODEL_CORRUPT
    assert (state(w, "a"), state(w, "b")) == (ModelState.LOADED, ModelState.FAILED)


def test_a_load_that_takes_too_long_fails_its_waiters_and_stays_charged_until_it_has_ended() -> None:
    w = world()
    number = w.ask(wants("c"))
    w.run_checks()
    w.advance(60.0)
    assert reason(w, number) is Reason.LOAD_TIMEOUT
    assert w.loads == {("c", 1): True}
    assert w.machine.residency.ledger.used_nbytes == 4 * MIB
    w.advance(1000.0)
    assert reason(w, w.ask(wants("c"))) is Reason.LOAD_TIMEOUT  # its end is not proved
    again = w.load("c", WAIT)
    w.run_checks()
    assert len(w.loads) == 1
    w.finish_load(("c", 1))  # it ended well after all: nobody wants that instance any more
    assert w.unloads == {("c", 1)}
    w.run()
    assert again in w.answered
    assert w.machine.residency.models["c"].current.generation == 2


def test_a_model_larger_than_its_estimate_gets_the_rest_from_idle_models() -> None:
    w = world()
    w.release(w.hold("c", WAIT))
    number = w.ask(wants("a"))
    w.run_checks()
    w.finish_load(("a", 1), 8 * MIB)
    assert state(w, "a") is ModelState.LOADING
    assert {name for name, _ in w.unloads} == {"c"}
    w.run()
    assert number in w.leases
    assert w.machine.residency.ledger.used_nbytes == 8 * MIB


def test_a_model_larger_than_its_estimate_is_admitted_at_once_where_there_is_room() -> None:
    w = world()
    number = w.ask(wants("a"))
    w.run_checks()
    w.finish_load(("a", 1), 8 * MIB)
    assert number in w.leases
    assert w.machine.residency.ledger.used_nbytes == 8 * MIB


def test_a_model_larger_than_its_estimate_fails_when_busy_models_leave_no_room() -> None:
    w = world()
    w.hold("c", WAIT)
    number = w.ask(wants("a"))
    w.run_checks()
    w.finish_load(("a", 1), 8 * MIB)
    assert reason(w, number) is Reason.MODEL_TOO_LARGE
    assert w.refused[number].facts["required_bytes"] == str(8 * MIB)
    w.run()
    assert w.machine.residency.ledger.used_nbytes == 4 * MIB


def test_a_dead_engine_fails_its_model_and_stays_charged_until_its_leases_and_its_end_are_in() -> None:
    w = world()
    lease = w.hold("a", WAIT)
    w.die(("a", 1), engine_failed("a"))
    assert state(w, "a") is ModelState.FAILED
    assert not w.unloads
    w.release(lease)
    assert w.unloads == {("a", 1)}
    assert w.machine.residency.ledger.used_nbytes == 6 * MIB
    w.run()
    assert w.machine.residency.ledger.used_nbytes == 0


# --- loads, reloads, unloads -------------------------------------------------------------------------------------


def test_a_load_of_a_resident_model_is_answered_at_once_and_may_pin_it() -> None:
    w = world()
    w.release(w.hold("a", WAIT))
    number = w.load("a", WAIT, pin=True)
    assert w.answered[number] == effects.AnswerLoad(number, (), None)
    assert reason(w, w.ask(wants("b", FAIL))) is Reason.CAPACITY_EXHAUSTED
    w.load("a", WAIT, pin=False)
    w.ask(wants("b", FAIL))
    w.run()
    assert state(w, "b") is ModelState.LOADED


def test_a_load_names_what_was_evicted_for_it_and_how_long_it_took() -> None:
    w = world()
    w.release(w.hold("a", WAIT))
    number = w.load("b", WAIT)
    w.run_checks()
    w.finish_unload(("a", 1))
    w.advance(2.0)
    w.finish_load(("b", 1))
    assert w.answered[number] == effects.AnswerLoad(number, ("a",), 2.0)


def test_a_reload_that_fits_serves_on_and_the_older_generation_ends_with_its_requests() -> None:
    w = world()
    old = w.hold("c", WAIT)
    number = w.load("c", WAIT, reload=True)
    w.run_checks()
    assert w.leases[w.ask(wants("c"))][0] == ("c", 1)
    w.finish_load(("c", 2))
    assert number in w.answered
    newer = w.ask(wants("c"))
    assert w.leases[newer][0] == ("c", 2)
    assert w.machine.residency.ledger.used_nbytes == 8 * MIB
    for lease in list(w.leases):
        if lease != newer:
            w.release(lease)
    assert old not in w.leases
    w.run()
    assert w.machine.residency.ledger.used_nbytes == 4 * MIB


def test_a_reload_that_does_not_fit_beside_the_old_generation_drains_it_first() -> None:
    w = world()
    old = w.hold("a", WAIT)
    number = w.load("a", WAIT, reload=True)
    w.run_checks()
    assert state(w, "a") is ModelState.DRAINING
    late = w.ask(wants("a"))
    w.release(old)
    w.run()
    assert number in w.answered
    assert w.leases[late][0] == ("a", 2)


def test_a_failed_reload_leaves_the_old_generation_serving() -> None:
    w = world()
    w.hold("c", WAIT)
    number = w.load("c", WAIT, reload=True)
    w.run_checks()
    w.fail_load(("c", 2), model_corrupt("c", "x", "broken"))
    assert reason(w, number) is Reason.MODEL_CORRUPT
    assert state(w, "c") is ModelState.LOADED
    assert w.ask(wants("c")) in w.leases


def test_idle_unload_comes_after_the_last_use_and_spares_the_pinned() -> None:
    w = world(a={"idle_unload_seconds": 5.0})
    lease = w.hold("a", WAIT)
    w.advance(100.0)
    w.release(lease)
    w.advance(4.0)
    w.release(w.ask(wants("a")))
    w.advance(4.9)
    assert state(w, "a") is ModelState.LOADED
    w.advance(0.2)
    assert state(w, "a") is ModelState.UNLOADING
    pinned = world(a={"idle_unload_seconds": 5.0, "pinned": True})
    pinned.release(pinned.hold("a", WAIT))
    pinned.advance(100.0)
    assert state(pinned, "a") is ModelState.LOADED


def test_an_unload_is_answered_when_the_memory_is_back_and_not_before() -> None:
    w = world()
    w.release(w.hold("a", WAIT))
    order = w.unload("a", UnloadMode.DRAIN)
    assert order in w.orders
    w.finish_unload(("a", 1))
    assert w.answered[order] == effects.AnswerUnload(order, 6 * MIB)
    again = w.unload("a", UnloadMode.DRAIN)
    assert w.answered[again] == effects.AnswerUnload(again, 0)


def test_if_idle_refuses_the_pinned_and_the_busy_and_what_is_on_its_way() -> None:
    w = world(b={"pinned": True})
    lease = w.hold("a", WAIT)
    assert reason(w, w.unload("a", UnloadMode.IF_IDLE)) is Reason.MODEL_BUSY
    w.release(lease)
    w.ask(wants("d"))
    assert reason(w, w.unload("d", UnloadMode.IF_IDLE)) is Reason.MODEL_BUSY
    number = w.unload("a", UnloadMode.IF_IDLE)
    w.run()
    assert number in w.answered
    w.release(w.hold("b", WAIT))
    assert reason(w, w.unload("b", UnloadMode.IF_IDLE)) is Reason.MODEL_PINNED
    drained = w.unload("b", UnloadMode.DRAIN)
    w.run()
    assert drained in w.answered


def test_a_drain_of_a_model_on_its_way_waits_for_the_tickets_of_its_time_only() -> None:
    w = world()
    first = w.ask(wants("a"))
    order = w.unload("a", UnloadMode.DRAIN)
    second = w.ask(wants("a"))
    w.run()
    assert first in w.leases
    assert second in w.asked
    assert state(w, "a") is ModelState.DRAINING
    w.release(first)
    w.run()
    assert order in w.answered
    assert w.leases[second][0] == ("a", 2)


def test_force_ends_tickets_and_requests_and_abandons_a_load() -> None:
    w = world()
    number = w.ask(wants("a"))
    w.run_checks()
    order = w.unload("a", UnloadMode.FORCE)
    assert reason(w, number) is Reason.MODEL_UNLOADED
    assert w.loads == {("a", 1): True}
    w.run()
    assert order in w.answered
    lease = w.hold("a", WAIT)
    w.unload("a", UnloadMode.FORCE)
    assert w.aborted == {("a", 2)}
    w.release(lease)
    w.run()
    assert state(w, "a") is ModelState.UNLOADED


def test_unloading_a_failed_model_forgets_its_failure() -> None:
    w = world()
    w.ask(wants("a"))
    w.finish_check(("a", 1), model_corrupt("a", "x", "broken"))
    order = w.unload("a", UnloadMode.DRAIN)
    assert order in w.answered
    assert state(w, "a") is ModelState.UNLOADED
    assert w.ask(wants("a")) in w.asked


def test_a_request_for_a_model_on_its_way_out_waits_and_gets_the_next_generation() -> None:
    w = world()
    w.release(w.hold("a", WAIT))
    w.unload("a", UnloadMode.DRAIN)
    number = w.ask(wants("a", FAIL))
    w.run()
    assert w.leases[number][0] == ("a", 2)


# --- the end -----------------------------------------------------------------------------------------------------


def test_the_end_of_waiting_ends_every_ticket_but_those_of_interrupted_requests_which_count_as_running() -> None:
    w = world()
    holder = w.hold("a", WAIT)
    number = w.ask(wants("b"))
    interrupted = w.ask(wants("b", interrupted=True))
    w.tell(inputs.WaitingEnded(server_draining()))
    assert reason(w, number) is Reason.SERVER_DRAINING
    assert reason(w, w.ask(wants("c"))) is Reason.SERVER_DRAINING
    assert w.ask(wants("a")) in w.leases
    assert interrupted in w.asked
    late = w.ask(wants("b", interrupted=True))
    for lease in list(w.leases):
        w.release(lease)
    assert holder not in w.leases
    w.run()
    assert {interrupted, late} <= set(w.leases)


def test_closing_ends_everything_and_every_byte_comes_back() -> None:
    w = world()
    w.hold("c", WAIT)
    w.ask(wants("d"))
    w.run_checks()
    w.ask(wants("e"))
    w.tell(inputs.Closed(engine_failed("x")))
    assert not w.asked
    for lease in list(w.leases):
        w.release(lease)
    w.run()
    assert w.machine.residency.ledger.used_nbytes == 0
    assert w.machine.next_wake() == math.inf


def test_a_removed_model_drains_and_leaves_and_a_new_one_can_be_asked_for() -> None:
    w = world()
    lease = w.hold("a", WAIT)
    kept = [entry(name, SIZES[name]) for name in "bcde"]
    w.tell(inputs.EntriesReplaced((*kept, entry("new", 1))))
    assert reason(w, w.ask(wants("a"))) is Reason.MODEL_NOT_FOUND
    w.release(lease)
    w.run()
    assert "a" not in w.machine.residency.models
    w.hold("new", WAIT)


def test_a_removed_model_ends_its_interrupted_requests_as_unloaded_and_names_only_what_is_left() -> None:
    w = world()
    w.hold("c", WAIT)
    w.hold("d", WAIT)
    waits = w.ask(wants("a", WAIT, interrupted=True))
    lost = w.ask(wants("a", WAIT))
    w.tell(inputs.EntriesReplaced(tuple(entry(name, SIZES[name]) for name in "bcde")))
    assert reason(w, waits) is Reason.MODEL_UNLOADED
    assert reason(w, lost) is Reason.MODEL_NOT_FOUND
    assert w.refused[lost].facts["configured_models"] == "b,c,d,e"


def test_a_probe_of_a_reload_counts_the_loaded_generation_s_room_only_where_both_do_not_fit() -> None:
    w = World([entry("a", 6), entry("b", 3), entry("c", 3)], RegistryLimits(10 * MIB, WAIT, min_residency_seconds=0.0))
    w.hold("a", WAIT)
    w.hold("b", WAIT)
    assert w.machine.probe("a", WAIT, w.now) == Probe(fits=True)
    assert w.machine.probe("a", WAIT, w.now, reload=True) == Probe(fits=True)  # after a drain of its own
    assert w.machine.probe("c", WAIT, w.now).blocking == ("a", "b")
    w.release(next(iter(w.leases)))
    w.run()
    assert w.machine.probe("b", WAIT, w.now, reload=True) == Probe(fits=True, evicted=("a",))
