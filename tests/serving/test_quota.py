"""The bucket of so much per minute: never above its rate, and its waits are exact."""

from hypothesis import given
from hypothesis import strategies as st

from inferd_server.serving.quota import Bucket

LIMITS = st.integers(1, 10_000)
GAPS = st.lists(st.tuples(st.floats(0, 200), st.integers(1, 50)), min_size=1, max_size=60)
START = 123_456.789
MICROSECOND = 1e-6


@given(limit=LIMITS, asks=GAPS)
def test_no_window_lets_more_through_than_its_length_and_a_bucket_allow(
    limit: int, asks: list[tuple[float, int]]
) -> None:
    bucket, now = Bucket(), START
    taken: list[tuple[float, int]] = []
    for gap, asked in asks:
        now += gap
        amount = min(asked, limit)
        if not bucket.wait_seconds(amount, limit, now):
            bucket.take(amount, limit, now)
            taken.append((now, amount))
    for i, (first, _) in enumerate(taken):
        for j in range(i, len(taken)):
            seconds = taken[j][0] - first
            assert sum(amount for _, amount in taken[i : j + 1]) <= limit * (1 + seconds / 60) + 1e-3


@given(limit=LIMITS, asks=GAPS, last=st.integers(1, 20_000))
def test_a_refused_ask_is_taken_after_its_wait_and_not_a_moment_before(
    limit: int, asks: list[tuple[float, int]], last: int
) -> None:
    bucket, now = Bucket(), START
    for gap, amount in asks:
        now += gap / 100
        bucket.take(amount * limit // 20 + 1, limit, now)
    wait = bucket.wait_seconds(last, limit, now)
    if wait:
        assert bucket.wait_seconds(last, limit, now + wait) == 0
        # The clock's floats round to nanoseconds, a wait up to the next microsecond.
        assert bucket.wait_seconds(last, limit, now + wait - 2 * MICROSECOND) > 0


@given(limit=LIMITS, asks=GAPS)
def test_who_asks_evenly_at_the_rate_is_never_refused(limit: int, asks: list[tuple[float, int]]) -> None:
    bucket, now = Bucket(), START
    for _, amount in asks:
        assert bucket.wait_seconds(amount, limit, now) == 0 or amount > limit
        bucket.take(min(amount, limit), limit, now)
        now += min(amount, limit) * 60 / limit + MICROSECOND


def test_a_full_bucket_lets_through_even_what_it_can_t_hold_and_then_waits_for_all_of_it() -> None:
    bucket = Bucket()
    assert bucket.wait_seconds(600, 60, START) == 0
    bucket.take(600, 60, START)
    assert 540 < bucket.wait_seconds(1, 60, START) < 541.1
    assert 600 <= bucket.wait_seconds(600, 60, START) < 600.1


def test_a_lower_limit_counts_at_once_and_forgives_nothing() -> None:
    bucket = Bucket()
    bucket.take(60, 60, START)
    assert 1 <= bucket.wait_seconds(1, 60, START) < 1.01
    assert 60 * 51 / 10 <= bucket.wait_seconds(1, 10, START) < 60 * 51.01 / 10


def test_a_clock_that_steps_back_takes_nothing_back() -> None:
    bucket = Bucket()
    bucket.take(60, 60, START)
    assert bucket.wait_seconds(1, 60, START - 1000) == bucket.wait_seconds(1, 60, START)
    bucket.take(1, 60, START - 1000)
    assert 2 <= bucket.wait_seconds(1, 60, START) < 2.01
