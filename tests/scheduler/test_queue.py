"""The wait queue: order, aging, removal, bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inferd_server.scheduler.queue import AGING_SECONDS, WaitQueue

priorities = st.integers(-100, 100)


def test_equal_priorities_are_served_in_order_of_arrival() -> None:
    queue: WaitQueue[str] = WaitQueue()
    for item in "abc":
        queue.push(item, 0, arrived=1.0)
    assert [queue.pop() for _ in range(3)] == ["a", "b", "c"]


def test_a_higher_priority_overtakes() -> None:
    queue: WaitQueue[str] = WaitQueue()
    queue.push("low", 0, arrived=0.0)
    queue.push("high", 1, arrived=9.0)
    assert queue.pop() == "high"


def test_ten_seconds_of_waiting_are_worth_one_priority() -> None:
    queue: WaitQueue[str] = WaitQueue()
    queue.push("old", 0, arrived=0.0)
    queue.push("new", 1, arrived=10.0)
    queue.push("newer", 1, arrived=9.9)
    assert queue.drain() == ["newer", "old", "new"]


def test_nobody_is_overtaken_for_ever_by_a_steady_flow_of_the_highest_priority() -> None:
    queue: WaitQueue[int] = WaitQueue()
    queue.push(-1, -100, arrived=0.0)
    for second in range(3000):
        queue.push(second, 100, arrived=float(second))
        if queue.pop() == -1:
            assert second <= 200 * AGING_SECONDS + 1
            return
    raise AssertionError("starved")


def test_a_removed_item_is_skipped_and_the_empty_queue_says_so() -> None:
    queue: WaitQueue[str] = WaitQueue()
    queue.push("a", 0, arrived=0.0)
    queue.push("b", 0, arrived=0.0)
    assert queue.remove("a")
    assert not queue.remove("a")
    assert queue.pop() == "b"
    with pytest.raises(IndexError):
        queue.pop()


def test_a_position_is_how_many_are_ahead_and_only_of_those_in_the_queue() -> None:
    queue: WaitQueue[str] = WaitQueue()
    queue.push("low", 0, arrived=0.0)
    queue.push("lower", -1, arrived=0.0)
    assert [queue.position(item) for item in ("low", "lower")] == [0, 1]
    queue.push("high", 50, arrived=0.0)
    assert [queue.position(item) for item in ("high", "low", "lower")] == [0, 1, 2]
    queue.remove("low")
    assert queue.position("lower") == 1
    assert queue.pop() == "high"
    assert queue.position("lower") == 0
    assert queue.drain() == ["lower"]
    for gone in ("low", "high", "lower"):
        assert gone not in queue
        with pytest.raises(KeyError):
            queue.position(gone)


def test_memory_follows_the_queue_when_everyone_leaves() -> None:
    queue: WaitQueue[int] = WaitQueue()
    queue.push(-1, 0, arrived=0.0)
    for item in range(10_000):
        queue.push(item, 0, arrived=0.0)
        queue.remove(item)
    assert len(queue._heap) < 50
    assert queue.pop() == -1


class QueueAgainstAList(RuleBasedStateMachine):
    """The heap answers as a sorted list would."""

    @initialize()
    def begin(self) -> None:
        self.queue: WaitQueue[int] = WaitQueue()
        self.model: list[tuple[float, int, int]] = []
        self.now = 0.0
        self.items = 0

    @rule(priority=priorities, elapsed=st.floats(0, 1000))
    def push(self, priority: int, elapsed: float) -> None:
        self.now += elapsed
        self.items += 1
        self.queue.push(self.items, priority, self.now)
        self.model.append((self.now / AGING_SECONDS - priority, self.items, self.items))

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        first = min(self.model)
        self.model.remove(first)
        assert self.queue.pop() == first[2]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.model))
        self.model.remove(gone)
        assert self.queue.remove(gone[2])

    @rule()
    def drain(self) -> None:
        assert self.queue.drain() == [item for _, _, item in sorted(self.model)]
        self.model.clear()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def ask_for_a_position(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.model))
        assert self.queue.position(asked[2]) == sorted(self.model).index(asked)

    @invariant()
    def lengths_agree(self) -> None:
        assert len(self.queue) == len(self.model)


TestQueueAgainstAList = QueueAgainstAList.TestCase


@given(st.lists(st.tuples(priorities, st.floats(0, 1e6)), max_size=50))
def test_whoever_is_ahead_stays_ahead(arrivals: list[tuple[int, float]]) -> None:
    """Order does not depend on when it is asked: the same in one drain as in pops between the arrivals' tails."""
    arrivals.sort(key=lambda arrival: arrival[1])
    one: WaitQueue[int] = WaitQueue()
    other: WaitQueue[int] = WaitQueue()
    for item, (priority, arrived) in enumerate(arrivals):
        one.push(item, priority, arrived)
        other.push(item, priority, arrived)
    assert one.drain() == [other.pop() for _ in range(len(other))]
