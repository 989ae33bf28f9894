"""Penalties and bias against a NumPy reference; logprobs of the raw logits."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inferd_server.core.generation import Sampling, Token
from inferd_server.engine.engine import Engine
from support.engine_room import Reference, collect, finish, ids, open_engine, request, run

VOCABULARY_SIZE = 263


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = open_engine(tiny_model)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


def prompt(length: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY_SIZE) for _ in range(length)]


def shaped(
    logits: NDArray[np.float32], context: list[int], output: list[int], sampling: Sampling
) -> NDArray[np.float32]:
    logits = logits.copy()
    for token_id, bias in sampling.logit_bias.items():
        logits[token_id] += np.float32(np.clip(bias, -1e37, 1e37))
    window = context[-sampling.repetition_window :] if sampling.repetition_window else []
    for token_id in set(window):
        penalty = sampling.repetition_penalty
        logits[token_id] = logits[token_id] * penalty if logits[token_id] < 0 else logits[token_id] / penalty
    for token_id in set(output):
        logits[token_id] -= output.count(token_id) * sampling.frequency_penalty + sampling.presence_penalty
    return logits


def greedy(reference: Reference, start: list[int], sampling: Sampling, tokens: int) -> list[int]:
    context = list(start)
    for _ in range(tokens):
        output = context[len(start) :]
        context.append(int(np.argmax(shaped(reference.logits(context), context, output, sampling))))
    return context[len(start) :]


SETTINGS = [
    Sampling(temperature=0.0, repetition_penalty=1.5),
    Sampling(temperature=0.0, repetition_penalty=1.8, repetition_window=4),
    Sampling(temperature=0.0, repetition_penalty=0.7, repetition_window=1),
    Sampling(temperature=0.0, repetition_penalty=2.0, repetition_window=0),
    Sampling(temperature=0.0, repetition_penalty=1.4, repetition_window=2**32 - 1),
    Sampling(temperature=0.0, presence_penalty=0.8),
    Sampling(temperature=0.0, frequency_penalty=0.4),
    Sampling(temperature=0.0, presence_penalty=-0.5, frequency_penalty=-0.3),
    Sampling(temperature=0.0, logit_bias={5: 3.0, 17: -8.0, 200: 2.5}),
    Sampling(temperature=0.0, logit_bias={5: 3.4e38, 6: -3.4e38}),
    Sampling(temperature=0.0, repetition_penalty=1.3, repetition_window=7, presence_penalty=0.3, logit_bias={9: 2.0}),
    Sampling(temperature=0.0),
]


def test_every_row_of_a_mixed_batch_follows_its_own_penalties(engine: Engine, reference: Reference) -> None:
    starts = [prompt(1 + 2 * number, seed=number) for number in range(len(SETTINGS))]
    lengths = [20 - number for number in range(len(SETTINGS))]
    requests = [request(*each) for each in zip(starts, lengths, SETTINGS, strict=True)]
    expected = [greedy(reference, *each) for each in zip(starts, SETTINGS, lengths, strict=True)]
    assert [ids(tokens) for tokens in run(engine, *requests)] == expected
    assert [ids(run(engine, each)[0]) for each in requests] == expected


def test_penalties_of_a_running_row_do_not_change_as_others_come_and_go(engine: Engine, reference: Reference) -> None:
    samplings = [each for each in SETTINGS if each.frequency_penalty or each.repetition_window < 64]
    starts = [prompt(4, seed=number) for number in range(len(samplings))]
    uids = [engine.insert(request(*each)) for each in zip(starts, [24] * len(starts), samplings, strict=True)]
    answers: dict[int, list[Token]] = {}
    for step in range(40):
        if step % 4 == 2:
            engine.insert(request(prompt(5, seed=step), 3, Sampling(temperature=0.0, frequency_penalty=0.1)))
        collect(answers, engine.step().tokens)
    finish(engine, answers)
    expected = [greedy(reference, *each, 24) for each in zip(starts, samplings, strict=True)]
    assert [ids(answers[uid]) for uid in uids] == expected


def test_a_prompts_own_tokens_are_neither_present_nor_frequent(engine: Engine, reference: Reference) -> None:
    start = prompt(8)
    logits = reference.logits(start)
    for token_id in (start[0], start[-1]):
        ahead = float(logits.max() - logits[token_id]) + 1
        sampling = Sampling(temperature=0.0, presence_penalty=1.0, frequency_penalty=1.0, logit_bias={token_id: ahead})
        [tokens] = run(engine, request(start, 2, sampling))
        assert ids(tokens)[0] == token_id


def test_extreme_settings_stay_within_numbers(engine: Engine, reference: Reference) -> None:
    start = prompt(6)
    tiny = Sampling(temperature=1e-40, seed=1)
    harsh = Sampling(temperature=1.0, repetition_penalty=1e-40, frequency_penalty=-3e38, seed=1)
    huge = Sampling(temperature=1.0, presence_penalty=3e38, logit_bias={7: 3e38}, seed=1)
    answers = [ids(tokens) for tokens in run(engine, *(request(start, 8, each) for each in (tiny, harsh, huge)))]
    assert answers[0] == reference.greedy(start, 8)
    assert set(answers[1]) <= {*start, *answers[1][:1]}
    assert answers[2][0] == 7


def test_penalties_go_on_behind_an_interruption(engine: Engine, reference: Reference) -> None:
    for number, sampling in enumerate(SETTINGS):
        start = prompt(6, seed=number)
        whole = greedy(reference, start, sampling, 14)
        [rest] = run(engine, request(start, 9, sampling, emitted_ids=tuple(whole[:5])))
        assert ids(rest) == whole[5:], sampling


def test_logprobs_are_those_of_the_raw_logits(engine: Engine, reference: Reference) -> None:
    samplings = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, top_k=5, seed=1),
        Sampling(temperature=0.0, repetition_penalty=1.7, logit_bias={3: 5.0}),
        Sampling(temperature=0.0),
        Sampling(temperature=1.0, seed=2),
    ]
    wanted = [0, 20, 3, None, 1000]
    start = prompt(12)
    answers = run(engine, *(request(start, 10, s, top_logprobs=top) for s, top in zip(samplings, wanted, strict=True)))
    for tokens, top in zip(answers, wanted, strict=True):
        context = list(start)
        for token in tokens:
            if top is None:
                assert token.logprob is None
                continue
            assert token.logprob is not None
            logits = reference.logits(context).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            assert token.logprob.token_id == token.token_id
            assert token.logprob.logprob == pytest.approx(logprobs[token.token_id], abs=1e-3)
            assert len(token.logprob.top) == min(top, VOCABULARY_SIZE)
            best = sorted(logprobs, reverse=True)[:top]
            assert [value for _, value in token.logprob.top] == pytest.approx(best, abs=1e-3)
            assert [logprobs[i] for i, _ in token.logprob.top] == pytest.approx(best, abs=1e-3)
            context.append(token.token_id)
