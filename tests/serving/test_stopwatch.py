"""Timing: the parts add up to the total."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.serving.stopwatch import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_parts_of_a_plain_request() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now += 3  # of which the load took 2
    watch.loaded(2)
    watch.admitted()
    clock.now += 0.5
    watch.token()
    clock.now += 4
    watch.token()
    timing = watch.timing()
    assert (timing.queue, timing.load, timing.prefill, timing.decode, timing.total) == (1, 2, 0.5, 4, 7.5)


def test_an_interruption_counts_as_queue_and_a_second_prefill() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.admitted()
    clock.now += 1
    watch.token()
    watch.interrupted()
    clock.now += 10
    watch.admitted()
    clock.now += 1
    watch.token()
    timing = watch.timing()
    assert (timing.queue, timing.prefill, timing.decode, timing.total) == (10, 2, 0, 12)


@given(st.lists(st.tuples(st.sampled_from(["admitted", "token", "interrupted"]), st.floats(0, 100)), max_size=30))
def test_the_parts_add_up_whatever_happened(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for name, seconds in steps:
        clock.now += seconds
        getattr(watch, name)()
    watch.token()
    timing = watch.timing()
    parts = timing.queue + timing.load + timing.prefill + timing.decode
    assert parts >= 0
    assert parts == pytest.approx(timing.total) or parts > timing.total
