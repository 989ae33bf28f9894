"""Tokens are those of mlx_lm, whatever the neighbours do (greedy, float32)."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_server.core.generation import Token
from inferd_server.engine.engine import Engine
from support import tiny_architectures, tiny_llama
from support.engine_room import Reference, collect, finish, ids, open_engine, request, run

BATCHABLE = ["llama", "qwen3", "gemma3_text", "mamba", "mamba2"]
EVERY = [*BATCHABLE, "llama4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("architectures")
    return {kind: tiny_architectures.build(root / kind, kind) for kind in EVERY}


@pytest.fixture
def engine(folders: dict[str, Path], architecture: str) -> Iterator[Engine]:
    engine = open_engine(folders[architecture], prefill_step_size=32)
    yield engine
    engine.close()


@pytest.fixture
def reference(folders: dict[str, Path], architecture: str) -> Reference:
    return Reference(folders[architecture])


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(tiny_architectures.VOCABULARY_SIZE) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("architecture", EVERY)
def test_a_sequence_alone_gets_the_tokens_of_mlx_lm(engine: Engine, reference: Reference) -> None:
    for prompt in prompts(1, 2, 31, 33, 34, 100):
        [tokens] = run(engine, request(prompt, 24))
        assert ids(tokens) == reference.greedy(prompt, 24)


@pytest.mark.parametrize("architecture", EVERY)
def test_sequences_that_start_together_get_the_tokens_of_mlx_lm(engine: Engine, reference: Reference) -> None:
    every = prompts(1, 7, 3, 90, 7, 2, 40)
    answers = run(engine, *(request(prompt, 20) for prompt in every))
    assert [ids(tokens) for tokens in answers] == [reference.greedy(prompt, 20) for prompt in every]


@pytest.mark.parametrize("architecture", EVERY)
def test_neighbours_that_join_end_and_are_removed_change_nothing(engine: Engine, reference: Reference) -> None:
    every = prompts(5, 12, 60, 1, 8, 35, 20, 3, seed=1)
    lengths = [30, 5, 20, 12, 1, 25, 18, 9]
    removed_at = {9: 0, 17: 5}
    uids, by_uid = [], {}
    for step in range(24):
        if step % 3 == 0:
            number = step // 3
            uids.append(engine.insert(request(every[number], lengths[number])))
        if step in removed_at:
            engine.remove(uids[removed_at[step]])
        collect(by_uid, engine.step().tokens)
    finish(engine, by_uid)
    for number, uid in enumerate(uids):
        expected = reference.greedy(every[number], lengths[number])
        got = ids(by_uid.get(uid, []))
        assert got == (expected[: len(got)] if number in removed_at.values() else expected), number


@pytest.mark.parametrize("architecture", EVERY)
def test_a_resumed_sequence_goes_on_as_if_nothing_had_happened(engine: Engine, reference: Reference) -> None:
    first, second = prompts(20, 45, seed=2)
    whole = [reference.greedy(prompt, 20) for prompt in (first, second)]
    answers = run(
        engine,
        request(first, 13, emitted_ids=tuple(whole[0][:7])),
        request(second, 1, emitted_ids=tuple(whole[1][:19])),
    )
    assert [ids(tokens) for tokens in answers] == [whole[0][7:], whole[1][19:]]
    assert [tokens[-1].ended for tokens in answers] == ["length", "length"]


@pytest.mark.parametrize(
    ("architecture", "decode", "prefill"),
    [(kind, True, kind != "mamba") for kind in BATCHABLE] + [("llama4", False, False)],
)
def test_the_trial_finds_out_what_may_be_batched(engine: Engine, decode: bool, prefill: bool) -> None:
    from inferd_server.engine.trial import try_batching

    batching = try_batching(engine._model, tiny_architectures.VOCABULARY_SIZE)  # type: ignore[attr-defined]
    assert (batching.decode, batching.prefill) == (decode, prefill)
    assert engine.max_rows == (64 if decode else 1)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "mamba2"])
def test_long_outputs_of_rows_with_different_lengths_stay_exact(engine: Engine, reference: Reference) -> None:
    every = prompts(3, 250, 31, seed=4)
    answers = run(engine, *(request(prompt, 40) for prompt in every))
    assert [ids(tokens) for tokens in answers] == [reference.greedy(prompt, 40) for prompt in every]


def test_random_arrivals_ends_and_removals_leave_every_token_exact(tiny_model: Path) -> None:
    source = random.Random(3)
    engine, reference = open_engine(tiny_model, prefill_step_size=32, max_batch_size=8), Reference(tiny_model)
    starts = prompts(*(source.choice([1, 2, 5, 30, 33, 70]) for _ in range(12)))
    whole = [reference.greedy(start, 40) for start in starts]
    live: dict[int, tuple[int, int]] = {}
    got: dict[int, list[Token]] = {}
    for _ in range(100):
        number, skip = source.randrange(12), source.choice([0, 0, 7])
        length = source.randrange(1, 30)
        emitted = tuple(whole[number][:skip])
        live[engine.insert(request(starts[number], length, emitted_ids=emitted))] = (number, skip)
        for _ in range(source.randrange(6)):
            collect(got, engine.step().tokens)
        if source.random() < 0.3:
            engine.remove(source.choice(list(live)))
    finish(engine, got)
    for uid, tokens in got.items():
        number, skip = live[uid]
        assert ids(tokens) == whole[number][skip : skip + len(tokens)]
    assert sum(tokens[-1].ended == "length" for tokens in got.values()) > 50
    assert engine.cache_nbytes == 0
    engine.close()


def test_a_quantised_model_gets_the_tokens_of_mlx_lm(tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "quantised", quantization_bits=4)
    engine, reference = open_engine(folder), Reference(folder)
    every = prompts(4, 30, 17)
    answers = run(engine, *(request(prompt) for prompt in every))
    assert [ids(tokens) for tokens in answers] == [reference.greedy(prompt) for prompt in every]


def test_text_is_that_of_stream_generate(tiny_model: Path) -> None:
    from mlx_lm import load, stream_generate

    model, tokenizer = load(str(tiny_model))
    prompt = tokenizer.encode("Hello there")
    expected = [each.token for each in stream_generate(model, tokenizer, prompt, max_tokens=40)]
    [tokens] = run(open_engine(tiny_model), request(prompt, 40, end_ids=frozenset(tokenizer.eos_token_ids)))
    assert ids(tokens) == expected


def test_an_end_id_ends_the_sequence_and_its_neighbours_go_on(tiny_model: Path) -> None:
    engine, reference = open_engine(tiny_model), Reference(tiny_model)
    first, second = prompts(10, 12)
    expected = reference.greedy(first, 12)
    end_id = expected[6]
    answers = run(engine, request(first, 12, end_ids=frozenset([end_id])), request(second, 12))
    assert ids(answers[0]) == expected[: expected.index(end_id) + 1]
    assert answers[0][-1].ended == "end_id"
    assert ids(answers[1]) == reference.greedy(second, 12)
    assert engine.cache_nbytes == 0


def test_an_end_id_wins_over_the_length(tiny_model: Path) -> None:
    [prompt] = prompts(10)
    [expected] = Reference(tiny_model).greedy(prompt, 1)
    [[token]] = run(open_engine(tiny_model), request(prompt, 1, end_ids=frozenset([expected])))
    assert (token.token_id, token.ended) == (expected, "end_id")
