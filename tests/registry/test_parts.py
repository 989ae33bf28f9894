"""The small pure parts: ledger, planner, policy, tickets, state table."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.core.model import ContentionPolicy, ModelState, Strategy
from inferd_server.registry.alarms import Alarms
from inferd_server.registry.ledger import Ledger, LedgerViolation
from inferd_server.registry.planner import MOST_RELEASES_WEIGHED, delays, releases, smallest_set
from inferd_server.registry.policy import backoff_seconds, patience, rank, spared_until
from inferd_server.registry.room import Victim
from inferd_server.registry.state import TRANSITIONS, Event, ImpossibleChange, after
from inferd_server.registry.tickets import Ticket, TicketQueue

sizes = st.lists(st.integers(1, 20), max_size=7)


def victims(nbytes: list[int]) -> list[Victim]:
    return [Victim(None, n) for n in nbytes]  # type: ignore[arg-type]


# --- state -------------------------------------------------------------------------------------------------------


def test_an_event_that_does_not_fit_the_state_raises() -> None:
    with pytest.raises(ImpossibleChange):
        after(ModelState.UNLOADED, Event.LOAD_STARTED)


def test_the_table_holds_every_change_of_the_semantics_and_every_state_can_be_left() -> None:
    changes = {(state, target) for state, row in TRANSITIONS.items() for target in row.values()}
    s = ModelState
    assert changes >= {
        (s.UNLOADED, s.QUEUED),
        (s.QUEUED, s.LOADING),
        (s.QUEUED, s.FAILED),
        (s.QUEUED, s.UNLOADED),
        (s.LOADING, s.LOADED),
        (s.LOADING, s.FAILED),
        (s.LOADING, s.UNLOADING),
        (s.LOADED, s.DRAINING),
        (s.LOADED, s.PREEMPTING),
        (s.LOADED, s.FAILED),
        (s.DRAINING, s.LOADED),
        (s.PREEMPTING, s.LOADED),
        (s.DRAINING, s.UNLOADING),
        (s.PREEMPTING, s.UNLOADING),
        (s.DRAINING, s.FAILED),
        (s.PREEMPTING, s.FAILED),
        (s.UNLOADING, s.UNLOADED),
        (s.FAILED, s.QUEUED),
        (s.FAILED, s.UNLOADED),
    }
    assert set(TRANSITIONS) == set(ModelState)


# --- ledger ------------------------------------------------------------------------------------------------------


def test_the_ledger_charges_the_larger_of_reservation_and_measurement_until_it_is_released() -> None:
    ledger = Ledger(10)
    ledger.reserve(("a", 1), 4)
    assert (ledger.used_nbytes, ledger.reserved_nbytes) == (4, 4)
    ledger.settle(("a", 1), 3)
    assert (ledger.used_nbytes, ledger.reserved_nbytes) == (4, 0)
    ledger.settle(("a", 1), 6)
    assert (ledger.used_nbytes, ledger.available_nbytes) == (6, 4)
    assert ledger.release(("a", 1)) == 6
    assert ledger.used_nbytes == 0


@pytest.mark.parametrize(
    "misuse",
    [
        lambda ledger: ledger.reserve(("b", 1), 7),
        lambda ledger: ledger.reserve(("a", 1), 1),
        lambda ledger: ledger.settle(("a", 1), 11),
        lambda ledger: ledger.settle(("b", 1), 1),
        lambda ledger: ledger.release(("b", 1)),
    ],
)
def test_the_ledger_refuses_what_exceeds_the_budget_or_does_not_exist_and_stays_as_it_was(misuse) -> None:
    ledger = Ledger(10)
    ledger.reserve(("a", 1), 4)
    with pytest.raises(LedgerViolation):
        misuse(ledger)
    assert (ledger.used_nbytes, ledger.keys()) == (4, {("a", 1)})


# --- planner -----------------------------------------------------------------------------------------------------


@given(sizes, st.integers(-5, 60))
def test_a_plan_is_enough_and_no_member_of_it_can_be_spared(nbytes: list[int], missing: int) -> None:
    plan = smallest_set(missing, victims(nbytes))
    if plan is None:
        assert sum(nbytes) < missing
        return
    total = sum(victim.nbytes for victim in plan)
    assert total >= missing
    assert all(total - victim.nbytes < missing for victim in plan)


def test_a_plan_takes_the_first_and_spares_the_last_ones_it_does_not_need() -> None:
    plan = smallest_set(6, victims([3, 2, 5]))
    assert plan is not None
    assert [victim.nbytes for victim in plan] == [3, 5]
    assert smallest_set(0, victims([3])) == []
    assert smallest_set(4, victims([3])) is None


@given(sizes, st.integers(-10, 60), st.integers(0, 20))
def test_a_taking_delays_exactly_when_some_set_of_releases_would_have_been_enough(
    busy: list[int], missing: int, taken: int
) -> None:
    subsets = itertools.chain.from_iterable(itertools.combinations(busy, n) for n in range(len(busy) + 1))
    expected = any(sum(subset) >= missing and sum(subset) < missing + taken for subset in subsets)
    assert delays(missing, taken, releases(busy)) is expected


def test_with_too_many_busy_instances_to_weigh_the_planner_errs_on_the_heads_side() -> None:
    busy = [5] * (MOST_RELEASES_WEIGHED + 1)
    assert not delays(1, 4, releases(busy))
    assert delays(1, 5, releases(busy))
    assert delays(0, 1, releases(busy))
    assert not delays(-5, 5, releases(busy))


# --- policy ------------------------------------------------------------------------------------------------------


@given(st.integers(-100, 100), st.integers(-100, 100), st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1e4))
def test_ranks_order_tickets_as_their_aged_priorities_do_at_any_time(p: int, q: int, a: float, b: float, w: float):
    now = max(a, b) + w
    first, second = p + (now - a) / 10, q + (now - b) / 10
    if abs(first - second) > 1e-6:
        assert (first > second) is (rank(p, a) < rank(q, b))


def test_patience_knows_each_strategy() -> None:
    def of(strategy: Strategy, **facts: bool):
        return patience(ContentionPolicy(strategy, 30.0, 15.0), 100.0, **facts)

    assert of(Strategy.FAIL).fails_at_once
    assert (of(Strategy.WAIT).expires_at, of(Strategy.WAIT).preempts_at) == (math.inf, math.inf)
    assert (of(Strategy.PREEMPT).expires_at, of(Strategy.PREEMPT).preempts_at) == (math.inf, 100.0)
    assert of(Strategy.PREEMPT).fails_when_blocked
    assert (of(Strategy.WAIT_THEN_FAIL).expires_at, of(Strategy.WAIT_THEN_FAIL).preempts_at) == (130.0, math.inf)
    both = of(Strategy.WAIT_THEN_PREEMPT)
    assert (both.expires_at, both.preempts_at, both.fails_when_blocked) == (130.0, 115.0, False)
    assert {of(strategy, interrupted=True) for strategy in Strategy} == {of(Strategy.WAIT)}


def test_the_backoff_doubles_from_one_second_to_five_minutes() -> None:
    assert [backoff_seconds(n) for n in (1, 2, 3, 9, 10, 10_000)] == [1.0, 2.0, 4.0, 256.0, 300.0, 300.0]


def test_a_request_is_spared_after_three_preemptions_by_one_rival_until_the_minute_has_passed() -> None:
    history = (("b", 10.0), ("b", 20.0), ("c", 25.0), ("b", 30.0))
    assert spared_until(history, "b", 40.0) == 70.0
    assert spared_until(history, "b", 70.0) == 70.0
    assert spared_until(history, "c", 40.0) == 40.0
    assert spared_until(history[:3], "b", 40.0) == 40.0


# --- tickets -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3), st.booleans()), max_size=30))
def test_the_queue_keeps_its_order_whatever_comes_and_goes(history) -> None:
    queue = TicketQueue()
    waiting: list[Ticket] = []
    for number, (model, priority, leaves) in enumerate(history):
        if leaves and waiting:
            queue.remove(waiting.pop(priority % len(waiting)))
        ticket = Ticket(number, model, float(number), priority, patience(ContentionPolicy(Strategy.PREEMPT), number))
        waiting.append(ticket)
        queue.add(ticket)
    ordered = sorted(waiting, key=lambda ticket: ticket.place)
    assert [queue.position(ticket) for ticket in ordered] == list(range(len(ordered)))
    heads = list(dict.fromkeys(ticket.model for ticket in ordered))
    assert [group.model for group in queue.in_order()] == heads
    for group in queue.in_order():
        mine = [ticket for ticket in ordered if ticket.model == group.model]
        assert group.in_order() == mine
        assert group.preempts_at == min(ticket.patience.preempts_at for ticket in mine)
        assert group.oldest_arrival == min(ticket.arrived_at for ticket in mine)


# --- alarms ------------------------------------------------------------------------------------------------------


def test_alarms_ring_in_order_and_those_of_the_dead_are_dropped_unheard() -> None:
    dead: set[object] = set()
    alarms = Alarms(lambda subject: subject not in dead)
    alarms.set(math.inf, "never")
    assert alarms.next_at() == math.inf
    for at, subject in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        alarms.set(at, subject)
    dead.add("a")
    assert alarms.next_at() == 2.0
    assert alarms.due(1.9) is None
    assert [alarms.due(3.0), alarms.due(3.0), alarms.due(3.0)] == ["b", "c", None]
