"""How prompts share the steps: who waits for whom, and how long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_server.engine.engine import Engine
from inferd_server.engine.language import open_language_engine
from inferd_server.engine.pacing import SMALLEST_PIECE
from inferd_server.engine.prefill import OLDEST_EVERY
from support.engine_room import LoadingFake, open_engine, request, settings

STEP_SIZE = 32


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    """Beside running rows its first piece has SMALLEST_PIECE tokens, every other one STEP_SIZE."""
    engine = open_engine(tiny_model, prefill_step_size=STEP_SIZE, target_gap_seconds=1000.0)
    yield engine
    engine.close()


def steps_until_first_token(engine: Engine, *uids: int) -> list[int]:
    first: dict[int, int] = {}
    for step in range(1, 400):
        for token in engine.step().tokens:
            first.setdefault(token.uid, step)
        if all(uid in first for uid in uids):
            break
    return [first[uid] for uid in uids]


def test_no_step_prefills_more_than_its_size(engine: Engine) -> None:
    for length in (100, 5, 40, 3, 33, 1, 20, 20):
        engine.insert(request([7] * length))
    done = [engine.step().prefill_tokens for _ in range(40)]
    assert max(done) <= STEP_SIZE
    assert sum(done) == 99 + 4 + 39 + 2 + 32 + 0 + 19 + 19


def test_short_prompts_that_arrive_together_get_their_first_token_together(engine: Engine) -> None:
    uids = [engine.insert(request([7] * length)) for length in (4, 6, 5, 1, 7)]
    assert steps_until_first_token(engine, *uids) == [2] * 5


def test_prompts_that_come_while_the_first_is_prefilled_decode_with_it_from_the_beginning(engine: Engine) -> None:
    uids = [engine.insert(request([7] * 5))]
    assert engine.step().tokens == []
    uids += [engine.insert(request([7] * length)) for length in (4, 6, 5)]
    assert engine.step().prefill_tokens == 3 + 5 + 4
    assert [token.uid for token in engine.step().tokens] == uids


def test_whoever_comes_after_that_waits_between_the_steps_of_running_rows(engine: Engine) -> None:
    first = engine.insert(request([7] * 5))
    engine.step()
    second = engine.insert(request([7] * 5))
    engine.step()
    third = engine.insert(request([7] * 5))
    assert [token.uid for token in engine.step().tokens] == [first, second]
    assert engine.step().prefill_tokens == 4
    assert [token.uid for token in engine.step().tokens] == [first, second, third]


def test_the_first_prompt_does_not_wait_for_a_part_of_a_long_one(engine: Engine) -> None:
    first = engine.insert(request([7] * 5))
    engine.step()
    engine.insert(request([7] * 10 * STEP_SIZE))
    assert [token.uid for token in engine.step().tokens] == [first]


def test_running_rows_get_a_token_between_the_chunks_of_a_long_prompt(engine: Engine) -> None:
    running = engine.insert(request([7, 8, 9], 60))
    engine.step()
    engine.insert(request([7] * 321))
    brought, prefilled = [], []
    for _ in range(20):
        result = engine.step()
        brought += [token.uid for token in result.tokens]
        prefilled.append(result.prefill_tokens)
    assert brought == [running] * 10
    assert prefilled == [0, min(SMALLEST_PIECE, STEP_SIZE)] + [0, STEP_SIZE] * 9


def test_pieces_are_large_while_nothing_decodes_and_small_beside_running_rows(tiny_model: Path) -> None:
    engine = open_engine(tiny_model, prefill_step_size=256, target_gap_seconds=1e-9)
    engine.insert(request([7] * 513, 200))
    assert [engine.step().prefill_tokens for _ in range(2)] == [256, 256]
    engine.insert(request([7] * 513))
    assert [engine.step().prefill_tokens for _ in range(6)] == [0, SMALLEST_PIECE] * 3
    engine.close()


def test_the_prompt_with_the_least_left_goes_first_and_the_oldest_of_equals(engine: Engine) -> None:
    longest, *equals = [engine.insert(request([7] * (STEP_SIZE * n + 1))) for n in (8, 4, 4)]
    shorter = engine.insert(request([7] * (STEP_SIZE * 2 + 1)))
    first = steps_until_first_token(engine, shorter, *equals, longest)
    assert first == sorted(first)
    assert len(set(first)) == 4


def test_a_long_prompt_gets_its_share_of_the_pieces_however_many_shorter_ones_come(engine: Engine) -> None:
    pieces = 5
    long = engine.insert(request([7] * (pieces * STEP_SIZE + 1)))
    brought: list[int] = []
    count = 0
    while long not in brought:
        engine.insert(request([8] * (STEP_SIZE + 2), 1))
        result = engine.step()
        brought += [token.uid for token in result.tokens]
        count += result.prefill_tokens > 0
    assert count <= OLDEST_EVERY * (pieces + 1)
    assert len(brought) > pieces


def test_a_short_prompt_overtakes_a_long_one_and_does_not_stop_it(engine: Engine) -> None:
    long = engine.insert(request([7] * (10 * STEP_SIZE + 1)))
    engine.step()
    shorts = [engine.insert(request([8] * 20)) for _ in range(3)]
    first = steps_until_first_token(engine, long, *shorts)
    assert max(first[1:]) <= 10
    assert first[0] <= 2 * (9 + 3) + 2


def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones(engine: Engine) -> None:
    long = engine.insert(request([7] * (4 * STEP_SIZE + 1)))
    brought: list[int] = []
    for _ in range(2 * OLDEST_EVERY * (4 + 1)):
        engine.insert(request([8] * 30, 1))
        brought += [token.uid for token in engine.step().tokens]
    assert long in brought


def test_the_end_of_a_long_prompt_is_not_prefilled_anew_beside_a_short_one(engine: Engine) -> None:
    pieces = 2 * OLDEST_EVERY - 1  # and one of the engine's warm-up: the next is not the oldest's
    long = engine.insert(request([7] * (pieces * STEP_SIZE + 9)))
    for _ in range(pieces):
        engine.step()
    short = engine.insert(request([8, 9, 10]))
    results = [engine.step() for _ in range(3)]
    assert [result.prefill_tokens for result in results] == [2, 8, 0]
    assert [token.uid for token in results[-1].tokens] == [short, long]


def test_an_idle_night_does_not_look_like_slow_prefill(tiny_model: Path) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    engine = open_language_engine(settings(tiny_model), LoadingFake(), clock=clock)
    now += 30_000.0
    engine.insert(request([7] * 65, 50))
    for _ in range(3):
        engine.step()
    engine.insert(request([7] * 129))
    assert max(engine.step().prefill_tokens for _ in range(2)) == 128
    engine.close()


def test_a_late_prompt_starts_beside_running_rows_within_three_steps(engine: Engine) -> None:
    for _ in range(4):
        engine.insert(request([7] * 10, 100))
    for _ in range(10):
        engine.step()
    assert steps_until_first_token(engine, engine.insert(request([9] * 12))) == [3]


def test_a_row_beyond_the_batch_waits_for_a_place(tiny_model: Path) -> None:
    engine = open_engine(tiny_model, max_batch_size=2)
    uids = [engine.insert(request([7, 8], 5)) for _ in range(3)]
    assert engine.max_rows == 2
    first = steps_until_first_token(engine, *uids)
    assert first[:2] == [2, 2]
    assert first[2] > 5
    engine.close()


def test_a_row_is_not_computed_beyond_its_last_token(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferd_server.engine import batch

    launched: list[object] = []
    monkeypatch.setattr(batch, "start", lambda *arrays: launched.append(arrays))
    engine.insert(request([7, 8, 9], 5))
    engine.insert(request([7, 8], 3))
    while engine.has_work:
        engine.step()
    assert len(launched) == 5
