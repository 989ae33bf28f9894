"""What fails alone, what fails together, and what is refused at the door."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.engine.engine import Engine
from support import tiny_llama
from support.engine_room import Reference, collect, finish, ids, open_engine, request, run

VOCABULARY_SIZE = 263
POISON = 5


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = open_engine(tiny_model, prefill_step_size=16)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def poisoned_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes NaN for every sequence with the token POISON."""
    import mlx.core as mx

    folder = tiny_llama.build(tmp_path_factory.mktemp("models") / "poisoned")
    file = str(folder / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    mx.eval(weights)
    mx.save_safetensors(file, weights, {"format": "mlx"})
    return folder


def prompt(length: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.choice([i for i in range(VOCABULARY_SIZE) if i != POISON]) for _ in range(length)]


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(temperature=1.0, top_p=0.9, top_k=40, seed=1)]
)
def test_a_sequence_with_nan_logits_fails_alone(poisoned_model: Path, sampling: Sampling) -> None:
    engine, reference = open_engine(poisoned_model), Reference(poisoned_model)
    good = prompt(14)
    poisoned = request([*prompt(5), POISON, *prompt(6)], 10, sampling, top_logprobs=2)
    answers = run(engine, request(good), poisoned, request(prompt(30)))
    assert [token.failure for token in answers[1]] == ["the model's logits are not finite"]
    assert ids(answers[0]) == reference.greedy(good)
    assert ids(answers[2]) == reference.greedy(prompt(30))
    assert not engine.has_work
    assert engine.cache_nbytes == 0
    engine.close()


@pytest.mark.parametrize(
    "bad",
    [
        request([]),
        request([1, VOCABULARY_SIZE]),
        request([-1]),
        request([1], emitted_ids=(5000,)),
        request([1], sampling=Sampling(temperature=0.0, logit_bias={VOCABULARY_SIZE: 1.0})),
        request([1], sampling=Sampling(temperature=0.0, logit_bias={1: float("nan")})),
        request([1], sampling=Sampling(temperature=float("inf"))),
        request([1], sampling=Sampling(temperature=1.0, top_p=float("nan"))),
        request([1], tokens=0),
    ],
)
def test_what_would_harm_the_process_is_refused_and_changes_nothing(engine: Engine, bad: DecodeRequest) -> None:
    good = engine.insert(request(prompt(5)))
    with pytest.raises(InferdError) as refused:
        engine.insert(bad)
    assert refused.value.reason == Reason.INVALID_PARAMETER
    assert len(finish(engine)[good]) == 16


@pytest.mark.parametrize("steps", range(8))
def test_a_removal_at_any_stage_frees_the_cache_and_leaves_the_others(
    engine: Engine, tiny_model: Path, steps: int
) -> None:
    others = [prompt(10, seed=1), prompt(3, seed=2)]
    uids = [engine.insert(request(each, 12)) for each in others]
    victim = engine.insert(request(prompt(60, seed=3), 40))
    tokens: dict[int, list[Any]] = {}
    for _ in range(steps):
        collect(tokens, engine.step().tokens)
    before = len(tokens.get(victim, []))
    engine.remove(victim)
    engine.remove(victim)
    engine.remove(12345)
    finish(engine, tokens)
    assert len(tokens.get(victim, [])) == before
    assert [ids(tokens[uid]) for uid in uids] == [Reference(tiny_model).greedy(each, 12) for each in others]
    assert engine.cache_nbytes == 0


def test_removing_everything_leaves_no_work_and_no_cache(engine: Engine) -> None:
    for steps in range(6):
        uids = [engine.insert(request(prompt(length))) for length in (4, 9, 50)]
        for _ in range(steps):
            engine.step()
        for uid in uids:
            engine.remove(uid)
        assert not engine.has_work
        assert engine.cache_nbytes == 0


def test_a_failed_step_loses_its_sequences_but_not_the_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferd_server.engine import batch

    uid = engine.insert(request(prompt(5)))
    for _ in range(3):
        engine.step()

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("[metal::malloc] Resource limit (499000) exceeded.")

    monkeypatch.setattr(batch, "start", fail)
    with pytest.raises(RuntimeError, match="Resource limit"):
        engine.step()
    assert not engine.is_broken
    assert not engine.has_work
    engine.remove(uid)
    [tokens] = run(engine, request(prompt(5)))
    assert len(tokens) == 16


def test_an_engine_whose_device_stays_dead_is_broken(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferd_server.engine import batch

    def fail(*_: object) -> None:
        raise RuntimeError("no device")

    engine.insert(request(prompt(5)))
    monkeypatch.setattr(batch, "start", fail)
    engine.step()  # prefill alone
    with pytest.raises(RuntimeError):
        engine.step()
    assert engine.is_broken


def test_a_step_without_work_brings_nothing(engine: Engine) -> None:
    result = engine.step()
    assert (result.tokens, result.prefill_tokens) == ([], 0)
