"""The watchdog's time for prefill."""

import pytest

from inferd_server.scheduler.allowance import (
    MEASURED_TOKENS,
    PATIENCE,
    UNMEASURED_MEDIA_NBYTE_SECONDS,
    UNMEASURED_TOKEN_SECONDS,
    PrefillAllowance,
)


def test_a_step_that_only_decodes_is_allowed_nothing() -> None:
    allowance = PrefillAllowance(512)
    allowance.begin([])
    assert allowance.seconds == 0


def test_before_a_measurement_a_generous_guess_counts() -> None:
    allowance = PrefillAllowance(512)
    allowance.begin([10])
    assert allowance.seconds == 10 * PATIENCE * UNMEASURED_TOKEN_SECONDS


@pytest.mark.parametrize(("lengths", "piece"), [([100], 100), ([100_000], 512), ([30, 100], 200), ([2] * 600, 512)])
def test_a_piece_is_what_is_asked_for_padded_and_at_most_the_step_size(lengths: list[int], piece: int) -> None:
    allowance = PrefillAllowance(512)
    allowance.begin([512])
    allowance.end(1.0, 500)
    allowance.begin([])
    allowance.end(1.0, 0)  # what computed the piece, perhaps
    allowance.begin(lengths)
    assert allowance.seconds == pytest.approx(piece * PATIENCE * 2.0 / 500)


def test_the_step_behind_a_piece_may_have_to_wait_for_it() -> None:
    allowance = PrefillAllowance(512)
    allowance.begin([300])
    allowance.end(0.001, 300)  # launched only
    allowance.begin([])  # its reader left
    assert allowance.seconds == pytest.approx(300 * PATIENCE * 0.001 / 300)
    allowance.end(3.0, 0)
    allowance.begin([])
    assert allowance.seconds == 0
    allowance.begin([300])
    assert allowance.seconds == pytest.approx(PATIENCE * 3.001)


def test_decode_steps_and_prompts_that_were_cached_are_no_measurement() -> None:
    allowance = PrefillAllowance(512)
    for _ in range(2):
        allowance.begin([100])
        allowance.end(0.05, 100)
        allowance.end(0.05, 0)
        for _ in range(1000):
            allowance.begin([100])
            allowance.end(1.0, 0)
    allowance.begin([1])
    assert allowance.seconds == pytest.approx(PATIENCE * 0.001)


def test_the_last_tokens_count_most() -> None:
    allowance = PrefillAllowance(512)
    for token_seconds in (0.001, 0.01):
        for _ in range(10 * MEASURED_TOKENS // 512):
            allowance.end(512 * token_seconds, 512)
    allowance.end(0.0, 0)
    allowance.begin([1])
    assert allowance.seconds == pytest.approx(PATIENCE * 0.01, rel=0.05)


def test_media_have_time_of_their_own_by_what_they_take() -> None:
    allowance = PrefillAllowance(512)
    allowance.begin([100], 10**9)
    guessed = 100 * UNMEASURED_TOKEN_SECONDS + 10**9 * UNMEASURED_MEDIA_NBYTE_SECONDS
    assert allowance.seconds == pytest.approx(PATIENCE * guessed)
    allowance.end(0.5, 0, 10**9)  # launched
    allowance.begin([100])
    assert allowance.seconds > PATIENCE * 0.5  # it is waited for in this step
    allowance.end(1.5, 100)
    allowance.begin([], 10**8)
    assert allowance.seconds >= PATIENCE * 0.2  # 2 s for 10**9
    allowance.end(0.01, 0)
    allowance.begin([])
    assert allowance.seconds == 0


def test_looking_at_media_is_no_measurement_of_prefill() -> None:
    allowance = PrefillAllowance(512)
    allowance.begin([100], 10**9)
    allowance.end(50.0, 0, 10**9)
    allowance.begin([100])
    allowance.end(50.0, 100)
    allowance.begin([100])
    allowance.end(1.0, 0)
    allowance.begin([512])
    assert allowance.seconds < PATIENCE * 512 * 0.1
