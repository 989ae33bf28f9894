"""What a request may ask of its output, asked by rows with pictures: penalties, grammars; and what fails alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferd_server.core.constraints import Constraint, ConstraintKind
from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.core.model import EngineKind
from inferd_server.engine.engine import Engine
from inferd_server.text.grammars import build_vocabulary, compile_constraint
from support import tiny_vlm
from support.engine_room import GREEDY, LoadingFake, ids, request, run, settings
from support.tiny_vlm import VisionReference, noise

CHAT = (noise(1), "a b ", noise(2, 60, 200), "and?")
TOKENS = 12
SHAPED = [
    Sampling(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    Sampling(temperature=0.0, frequency_penalty=1.1, logit_bias={70: 2.0, 71: -3.0}),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> VisionReference:
    return VisionReference(tiny_vlm.build(tmp_path_factory.mktemp("models") / "eyes"))


@pytest.fixture(scope="module")
def engine(reference: VisionReference) -> Iterator[Engine]:
    from inferd_server.engine.vision import open_vision_engine

    # So small a gap cuts looking and prefill as small as they get.
    opened = settings(reference.folder, kind=EngineKind.VISION, target_gap_seconds=1e-9)
    engine = open_vision_engine(opened, LoadingFake())
    yield engine
    engine.close()


def asked(reference: VisionReference, sampling: Sampling = GREEDY, **changes: Any) -> DecodeRequest:
    prompt, pictures = reference.prompt(CHAT)
    return request(prompt, TOKENS, sampling, pictures=pictures, **changes)


def shaped_greedy(reference: VisionReference, sampling: Sampling) -> list[int]:
    """Each token from mlx_vlm's log probabilities behind all of the context, shaped in NumPy."""
    from inferd_server.engine.sight import SightedModel

    prompt, pictures = reference.prompt(CHAT)
    output: list[int] = []
    while len(output) < TOKENS:
        logits = np.array(SightedModel(reference.model).reference([*prompt, *output], pictures))
        for token in set(output):
            logits[token] -= output.count(token) * sampling.frequency_penalty + sampling.presence_penalty
        for token, bias in sampling.logit_bias.items():
            logits[token] += bias
        output.append(int(logits.argmax()))
    return output


def test_penalties_shape_the_output_behind_pictures_row_by_row(engine: Engine, reference: VisionReference) -> None:
    never = dict.fromkeys(reference.reader.placeholders, -1e3)  # the reference would look for another picture
    samplings = [replace(each, logit_bias={**each.logit_bias, **never}) for each in SHAPED]
    expected = [shaped_greedy(reference, each) for each in samplings]
    plain = reference.greedy(CHAT, tokens=TOKENS)
    answers = run(engine, *(asked(reference, each) for each in samplings), asked(reference))
    assert [ids(answer) for answer in answers] == [*expected, plain]
    assert plain not in expected


@pytest.mark.parametrize("seed", [None, 7])
def test_a_grammar_holds_behind_pictures_and_resumed(
    engine: Engine, reference: VisionReference, seed: int | None
) -> None:
    sampling = GREEDY if seed is None else Sampling(temperature=1.3, seed=seed)
    vocabulary = build_vocabulary(reference.tokenizer)
    grammar = compile_constraint(vocabulary, Constraint(ConstraintKind.REGEX, "(ab|cd){5}e"))
    bound = asked(reference, sampling, grammar=grammar, end_ids=reference.tokenizer.end_ids)
    whole, beside = (ids(answer) for answer in run(engine, bound, asked(reference)))
    text = reference.tokenizer.decode(whole[:11])
    assert len(text) == 11
    assert text.replace("ab", "").replace("cd", "") == "e"
    assert beside == reference.greedy(CHAT, tokens=TOKENS)
    resumed = replace(bound, emitted_ids=tuple(whole[:4]), max_tokens=TOKENS - 4)
    assert [*whole[:4], *ids(run(engine, resumed)[0])] == whole


def test_pictures_that_come_out_as_no_numbers_fail_their_row_alone(engine: Engine, reference: VisionReference) -> None:
    bound = asked(reference)
    assert bound.pictures is not None
    blinding = {**bound.pictures.values, "pixel_values": bound.pictures.values["pixel_values"] * np.float32("nan")}
    blind = replace(bound, pictures=replace(bound.pictures, values=blinding))
    answers = run(engine, blind, bound)
    assert [token.failure for token in answers[0]] == ["the model's logits are not finite"]
    assert ids(answers[1]) == ids(run(engine, bound)[0]) == reference.greedy(CHAT, tokens=TOKENS)
