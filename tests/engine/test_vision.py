"""The vision engine gives mlx_vlm's own tokens, whatever decodes beside them and whatever happens to them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.core.model import EngineKind
from inferd_server.engine.engine import Engine
from support import tiny_vlm
from support.engine_room import LoadingFake, collect, finish, ids, request, run, settings
from support.tiny_vlm import VisionReference, image, noise

TOKENS = 20
CHATS: dict[str, tuple[Sequence[Any], ...]] = {
    "one image": ((image("red"), "what is it?"),),
    "another": ((noise(1, 300, 100), "what is it?"),),
    "two in a message": (("first ", noise(2), " then ", noise(3, 60, 200), " and?"),),
    "over the chat": ((noise(4), "a"), ("more?",), (image("blue", 33, 99), noise(5), "b")),
    "text alone": (("just words",),),
    "longer text": (("many words " * 30,),),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("models") / "eyes")


@pytest.fixture(scope="module")
def reference(folder: Path) -> VisionReference:
    return VisionReference(folder)


@pytest.fixture(scope="module")
def expected(reference: VisionReference) -> dict[str, list[int]]:
    return {name: reference.greedy(*turns, tokens=TOKENS) for name, turns in CHATS.items()}


def open_eyes(folder: Path, **changes: Any) -> Engine:
    from inferd_server.engine.vision import open_vision_engine

    return open_vision_engine(settings(folder, kind=EngineKind.VISION, **changes), LoadingFake())


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    engine = open_eyes(folder)
    yield engine
    engine.close()


def asked(reference: VisionReference, name: str, tokens: int = TOKENS, **changes: Any) -> DecodeRequest:
    prompt, pictures = reference.prompt(*CHATS[name])
    return request(prompt, tokens, pictures=pictures, **changes)


def test_different_images_give_different_answers(expected: dict[str, list[int]]) -> None:
    assert len({tuple(tokens) for tokens in expected.values()}) == len(CHATS)


@pytest.mark.parametrize("name", CHATS)
def test_alone_it_gives_mlx_vlms_tokens(
    engine: Engine, reference: VisionReference, expected: dict[str, list[int]], name: str
) -> None:
    assert ids(run(engine, asked(reference, name))[0]) == expected[name]


@pytest.mark.parametrize("step", [1, 3, 512])
def test_so_it_does_in_a_mixed_batch_however_prompts_are_cut(
    folder: Path, reference: VisionReference, expected: dict[str, list[int]], step: int
) -> None:
    engine = open_eyes(folder, prefill_step_size=step)
    answers = run(engine, *(asked(reference, name) for name in CHATS))
    assert [ids(answer) for answer in answers] == list(expected.values())
    engine.close()


def test_joining_late_and_leaving_early_change_nothing_for_others(
    engine: Engine, reference: VisionReference, expected: dict[str, list[int]]
) -> None:
    tokens: dict[int, Any] = {}
    uids = {}
    left = []
    for number, name in enumerate(CHATS):
        uids[name] = engine.insert(asked(reference, name))
        left.append(engine.insert(asked(reference, name, 200)))
        for _ in range(number + 3):
            collect(tokens, engine.step().tokens)
        if number % 2:
            engine.remove(left.pop(0))
    for uid in left:
        engine.remove(uid)
    finish(engine, tokens)
    assert {name: ids(tokens[uid]) for name, uid in uids.items()} == expected


@pytest.mark.parametrize("steps", range(4))
def test_a_row_removed_at_any_stage_leaves_nothing(
    engine: Engine, reference: VisionReference, expected: dict[str, list[int]], steps: int
) -> None:
    uid = engine.insert(asked(reference, "over the chat"))
    for _ in range(steps):
        engine.step()
    engine.remove(uid)
    assert ids(run(engine, asked(reference, "one image"))[0]) == expected["one image"]
    assert not engine.has_work


HASTE = {"target_gap_seconds": 1e-9}
"""Beside running streams, and alone too, no more than a layer of the vision tower is computed in a step."""


def test_streams_go_on_between_the_layers_that_look_at_others_pictures(
    folder: Path, reference: VisionReference, expected: dict[str, list[int]]
) -> None:
    engine = open_eyes(folder, **HASTE)
    running = engine.insert(asked(reference, "text alone", 100))
    tokens: dict[int, Any] = {}
    while len(tokens.get(running, ())) < 3:
        collect(tokens, engine.step().tokens)
    names = ["over the chat", "another"]
    looking = [engine.insert(asked(reference, name)) for name in names]
    before = len(tokens[running])
    media = []
    while any(uid not in tokens for uid in looking):
        result = engine.step()
        media.append(result.media_nbytes)
        collect(tokens, result.tokens)
    pieces = sum(map(bool, media))
    assert pieces >= 2 * 3  # of two prompts: two layers each, and what is behind them
    assert len(tokens[running]) - before >= pieces
    shares = [asked(reference, name).media_nbytes for name in names]
    assert sum(shares) <= sum(media) <= sum(shares) + pieces
    finish(engine, tokens)
    assert [ids(tokens[uid]) for uid in looking] == [expected[name] for name in names]
    engine.close()


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_row_removed_between_layers_leaves_nothing_and_others_are_looked_at(
    folder: Path, reference: VisionReference, expected: dict[str, list[int]], steps: int
) -> None:
    engine = open_eyes(folder, **HASTE)
    gone, stays = engine.insert(asked(reference, "over the chat")), engine.insert(asked(reference, "one image"))
    tokens: dict[int, Any] = {}
    for _ in range(steps):
        collect(tokens, engine.step().tokens)
    engine.remove(gone)
    finish(engine, tokens)
    assert ids(tokens[stays]) == expected["one image"]
    engine.close()


@pytest.mark.parametrize("emitted", [1, 7, TOKENS - 1])
@pytest.mark.parametrize("step", [2, 512])
def test_one_that_was_handed_back_goes_on_as_if_nothing_had_happened(
    folder: Path, reference: VisionReference, expected: dict[str, list[int]], emitted: int, step: int
) -> None:
    engine = open_eyes(folder, prefill_step_size=step)
    names = ["over the chat", "text alone", "another"]
    before = [tuple(expected[name][:emitted]) for name in names]
    requests = [
        asked(reference, name, TOKENS - emitted, emitted_ids=done) for name, done in zip(names, before, strict=True)
    ]
    answers = run(engine, *requests)
    assert [[*done, *ids(answer)] for done, answer in zip(before, answers, strict=True)] == [expected[n] for n in names]
    engine.close()


def test_seeds_draw_the_same_alone_and_beside_others(engine: Engine, reference: VisionReference) -> None:
    sampling = [Sampling(temperature=1.3, seed=seed, top_p=0.95) for seed in (1, 2)]
    seeded = [asked(reference, "one image", sampling=each) for each in sampling]
    alone = [ids(run(engine, each)[0]) for each in seeded]
    assert alone[0] != alone[1]
    together = run(engine, *seeded, asked(reference, "text alone"), *reversed(seeded))
    assert [ids(answer) for answer in together[:2]] == alone
    assert [ids(answer) for answer in together[3:]] == alone[::-1]


def test_logprobs_are_those_of_the_raw_logits(engine: Engine, reference: VisionReference) -> None:
    steps = reference.steps(*CHATS["one image"], tokens=6)
    sampling = Sampling(temperature=0.0, presence_penalty=0.0, logit_bias={})
    answer, _ = run(
        engine, asked(reference, "one image", 6, sampling=sampling, top_logprobs=3), asked(reference, "another")
    )
    for token, (token_id, logprobs) in zip(answer, steps, strict=True):
        assert token.logprob is not None
        assert token.token_id == token_id
        assert token.logprob.logprob == pytest.approx(logprobs[token_id], abs=1e-3)
        best = np.argsort(-logprobs)[:3]
        assert [each for each, _ in token.logprob.top] == best.tolist()


def test_pictures_that_a_model_refuses_fail_their_row_alone(
    engine: Engine, reference: VisionReference, expected: dict[str, list[int]]
) -> None:
    prompt, _ = reference.prompt(*CHATS["two in a message"])
    _, fewer = reference.prompt(*CHATS["one image"])
    answers = run(engine, asked(reference, "another"), request(prompt, TOKENS, pictures=fewer))
    assert ids(answers[0]) == expected["another"]
    assert [token.failure for token in answers[1]] == ["the model does not take these pictures"]


def test_prefixes_are_shared_by_those_who_saw_the_same(
    folder: Path, reference: VisionReference, expected: dict[str, list[int]]
) -> None:
    engine = open_eyes(folder, prefix_cache_nbytes=1 << 24)
    first = (noise(7, 280, 224), "long enough to be kept " * 4)
    other = (noise(8, 280, 224), *first[1:])
    again = [(*first,), ("and then?",)]
    cached = []
    for turns in ([first], [first], [other], again):
        prompt, pictures = reference.prompt(*turns)
        answer = run(engine, request(prompt, TOKENS, pictures=pictures))[0]
        assert ids(answer) == reference.greedy(*turns, tokens=TOKENS)
        cached.append(answer[0].cached_tokens)
    assert cached[0] == cached[2] == 0
    assert min(cached[1], cached[3]) > 64
    engine.close()


@pytest.mark.parametrize("sides", [[(60, 60)], [(500, 400)], [(300, 200)] * 6])
def test_looking_at_pictures_takes_no_more_than_the_formulas_say(tmp_path: Path, sides: list[tuple[int, int]]) -> None:
    import mlx.core as mx

    sharp = VisionReference(tiny_vlm.build(tmp_path / "sharp", max_pixels=400_000))
    engine = open_eyes(tmp_path / "sharp", prefill_step_size=64)
    prompt, pictures = sharp.prompt([noise(number, *each) for number, each in enumerate(sides)])
    asked_for = [request(prompt, 8, pictures=pictures) for _ in range(2)]
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run(engine, *asked_for)
    peak = mx.get_peak_memory() - before
    first = asked_for[0]
    formula = engine.footprint.peak_nbytes(2, first.total_tokens, first.context_tokens, first.media_nbytes)
    assert peak <= formula < 6 * peak
    engine.close()
