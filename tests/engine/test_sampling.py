"""Drawing tokens: the filters against NumPy, and what a draw depends on."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inferd_server.core.generation import Sampling
from inferd_server.engine.engine import Engine
from support.engine_room import Reference, collect, finish, ids, open_engine, request, run

VOCABULARY_SIZE = 263
Vector = NDArray[np.float64]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = open_engine(tiny_model)
    yield engine
    engine.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY_SIZE) for _ in range(length)]


MIXED = [
    Sampling(temperature=0.9, seed=7),
    Sampling(temperature=0.0),
    Sampling(temperature=1.3, top_p=0.8, seed=2**64 - 1),
    Sampling(temperature=0.7, top_k=5, seed=3),
    Sampling(temperature=1.0, min_p=0.1, seed=4),
    Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.02, seed=5),
    Sampling(temperature=0.9, seed=7),
    Sampling(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, seed=8),
    Sampling(temperature=0.7, top_k=1000, seed=9),
    Sampling(temperature=0.6, repetition_penalty=1.2, repetition_window=3, logit_bias={9: 4.0}, seed=10),
]


def test_seeded_sampling_is_independent_of_neighbours(engine: Engine) -> None:
    requests = [request(prompt(5 + 3 * i, seed=i), 24, sampling) for i, sampling in enumerate(MIXED)]
    alone = [ids(run(engine, each)[0]) for each in requests]
    assert [ids(tokens) for tokens in run(engine, *requests)] == alone
    staggered: dict[int, list[object]] = {}
    uids = []
    for each in requests:
        uids.append(engine.insert(each))
        collect(staggered, engine.step().tokens)  # type: ignore[arg-type]
    finish(engine, staggered)  # type: ignore[arg-type]
    assert [ids(staggered[uid]) for uid in uids] == alone  # type: ignore[arg-type]


def test_seeded_sampling_goes_on_behind_an_interruption(engine: Engine) -> None:
    for number, sampling in enumerate(MIXED):
        start = prompt(9, seed=number)
        whole = ids(run(engine, request(start, 20, sampling))[0])
        rest = run(engine, request(start, 12, sampling, emitted_ids=tuple(whole[:8])), request(start, 4, sampling))
        assert ids(rest[0]) == whole[8:], sampling


def test_another_seed_draws_other_tokens(engine: Engine) -> None:
    answers = run(engine, *(request(prompt(8), 24, Sampling(temperature=1.0, seed=seed)) for seed in range(8)))
    assert len({tuple(ids(tokens)) for tokens in answers}) == 8


def test_the_same_request_twice_in_a_batch_draws_the_same(engine: Engine) -> None:
    each = request(prompt(8), 24, Sampling(temperature=1.0, seed=1))
    first, second = run(engine, each, each)
    assert ids(first) == ids(second)


def test_top_k_1_and_temperature_0_are_greedy(engine: Engine, tiny_model: Path) -> None:
    expected = Reference(tiny_model).greedy(prompt(11))
    for sampling in (Sampling(temperature=0.0, top_p=0.5, top_k=7), Sampling(temperature=2.0, top_k=1)):
        assert ids(run(engine, request(prompt(11), 16, sampling))[0]) == expected


def kept_by(logits: Vector, sampling: Sampling) -> set[int]:
    """The tokens that survive mlx_lm's filters, one after the other."""
    logprobs = logits - np.log(np.exp(logits).sum())
    if sampling.top_p < 1:
        order = np.argsort(-logprobs)
        above = np.cumsum(np.exp(logprobs[order])) - np.exp(logprobs[order])
        logprobs[order[above >= sampling.top_p]] = -np.inf
    if sampling.min_p > 0:
        logprobs[logprobs < logprobs.max() + np.log(sampling.min_p)] = -np.inf
    if sampling.top_k > 0:
        logprobs[np.argsort(-logprobs)[sampling.top_k :]] = -np.inf
    return set(np.flatnonzero(np.isfinite(logprobs)).tolist())


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=1.0, top_p=0.35),
        Sampling(temperature=3.0, top_p=0.9),
        Sampling(temperature=1.5, top_k=4),
        Sampling(temperature=1.0, min_p=0.5),
        Sampling(temperature=2.0, top_p=0.7, top_k=9, min_p=0.05),
        Sampling(temperature=1.0, top_p=1e-9),
    ],
)
def test_draws_follow_the_filtered_distribution(sampling: Sampling) -> None:
    import mlx.core as mx

    from inferd_server.engine.sampling import Sampler

    rows, rounds = 64, 60
    logits = 2 * np.random.default_rng(0).standard_normal(24)
    sampler = Sampler([(Sampling(**{**_fields(sampling), "seed": seed}), 0) for seed in range(rows)])
    batch = mx.array(np.tile(logits, (rows, 1)).astype(np.float32))
    drawn = [token for _ in range(rounds) for token in sampler(batch).tolist()]
    kept = kept_by(logits.copy(), sampling)
    weights = np.array([np.exp(value / sampling.temperature) * (i in kept) for i, value in enumerate(logits)])
    expected = weights / weights.sum()
    seen = np.bincount(drawn, minlength=24) / len(drawn)
    assert set(drawn) <= kept
    assert np.abs(seen - expected).max() < 0.04


def test_rows_with_different_parameters_share_a_call_without_mixing_them() -> None:
    import mlx.core as mx

    from inferd_server.engine.sampling import Sampler

    logits = mx.array(np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32))
    every = [(Sampling(temperature=t, top_p=p, top_k=k, seed=t10), 3) for t10, (t, p, k) in enumerate(_PARAMETERS)]
    together = Sampler(every)(logits).tolist()
    assert together == [Sampler([each])(logits[i : i + 1]).item() for i, each in enumerate(every)]


_PARAMETERS = [(0.5, 0.9, 3), (2.0, 0.5, 50), (1.0, 0.99, 2), (0.0, 0.9, 3), (1.5, 1.0, 3), (0.7, 1.0, 0)]


def _fields(sampling: Sampling) -> dict[str, object]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
