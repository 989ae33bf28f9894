"""Speculative decoding: token for token what comes without it, whatever joins, leaves, ends or fails meanwhile."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError
from inferd_server.core.generation import Sampling
from inferd_server.engine import device
from inferd_server.engine.speculative import MOST_DRAFTED, Drafting
from support import tiny_architectures, tiny_llama
from support.engine_room import Reference, collect, finish, ids, open_engine, request, run

PROMPTS = ([5, 9, 100, 31], [77, 8], list(range(20, 90)))


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Path]:
    """A draft model that is never right, and one that always is."""
    return {"poor": tiny_llama.build(tmp_path_factory.mktemp("m") / "d", layers=1, seed=7), "perfect": tiny_model}


def opened(tiny_model: Path, draft: Path, **changes: Any) -> Any:
    return open_engine(tiny_model, draft_path=draft, prefix_cache_nbytes=1 << 24, **changes)


@pytest.mark.parametrize("kind", ["poor", "perfect"])
def test_one_after_the_other_gets_mlx_lm_s_tokens(
    tiny_model: Path, drafts: dict[str, Path], reference: Reference, kind: str
) -> None:
    engine = opened(tiny_model, drafts[kind], prefill_step_size=16)
    for length in (1, 2, 3, 5, 40):
        for prompt in PROMPTS:
            [tokens] = run(engine, request(prompt, length))
            assert ids(tokens) == reference.greedy(prompt, length)
            assert [token.ended for token in tokens] == [""] * (length - 1) + ["length"] or tokens[-1].ended
    engine.close()


@pytest.mark.parametrize("kind", ["poor", "perfect"])
def test_others_join_and_leave_without_a_token_lost(
    tiny_model: Path, drafts: dict[str, Path], reference: Reference, kind: str
) -> None:
    engine = opened(tiny_model, drafts[kind], prefill_step_size=16)
    expected = [reference.greedy(prompt, 60) for prompt in PROMPTS]
    for steps in range(1, 14):
        tokens: dict[int, list[Any]] = {}
        first = engine.insert(request(PROMPTS[0], 60))
        for _ in range(steps):
            collect(tokens, engine.step().tokens)
        second = engine.insert(request(PROMPTS[2], 4 + steps))
        third = engine.insert(request(PROMPTS[1], 60))
        for _ in range(steps):
            collect(tokens, engine.step().tokens)
        engine.remove(third)
        tokens.pop(third, None)
        finish(engine, tokens)
        assert ids(tokens[first]) == expected[0]
        assert ids(tokens[second]) == expected[2][: 4 + steps]
        assert list(tokens) == [first, second] or list(tokens) == [second, first]
    engine.close()


def test_right_drafts_bring_several_tokens_a_step_and_wrong_ones_one(tiny_model: Path, drafts: dict[str, Path]) -> None:
    def most_at_once(draft: Path | None, **changes: Any) -> int:
        engine = open_engine(tiny_model, draft_path=draft)
        engine.insert(request(PROMPTS[0], 40, **changes))
        most = 0
        while engine.has_work:
            most = max(most, len(engine.step().tokens))
        engine.close()
        return most

    assert most_at_once(drafts["perfect"]) == 1 + MOST_DRAFTED
    assert most_at_once(None) == 1
    for changes in ({"sampling": Sampling(1.0, seed=1)}, {"top_logprobs": 2}):
        assert most_at_once(drafts["perfect"], **changes) == 1
    assert most_at_once(drafts["perfect"], sampling=Sampling(0.0, repetition_penalty=1.2)) == 1


def test_it_ends_at_an_end_id_wherever_among_the_drafts(
    tiny_model: Path, drafts: dict[str, Path], reference: Reference
) -> None:
    engine = opened(tiny_model, drafts["perfect"])
    expected = reference.greedy(PROMPTS[1], 12)
    for end in set(expected):
        [tokens] = run(engine, request(PROMPTS[1], 40, end_ids=frozenset([end])))
        assert ids(tokens) == expected[: expected.index(end) + 1]
        assert [token.ended for token in tokens] == [""] * (len(tokens) - 1) + ["end_id"]
    engine.close()


def test_a_turn_behind_another_and_a_resumed_one_are_exact(
    tiny_model: Path, drafts: dict[str, Path], reference: Reference
) -> None:
    engine = opened(tiny_model, drafts["perfect"])
    prompt = list(range(20, 130))
    [tokens] = run(engine, request(prompt, 70, cache_identity="a"))
    assert ids(tokens) == reference.greedy(prompt, 70)
    longer = [*prompt, *ids(tokens), 9, 8, 7]
    [again] = run(engine, request(longer, 20, cache_identity="a"))
    assert again[0].cached_tokens > len(prompt)
    assert ids(again) == reference.greedy(longer, 20)
    [rest] = run(engine, request(prompt, 40, emitted_ids=tuple(ids(tokens)[:30])))
    assert ids(rest) == ids(tokens)[30:]
    engine.close()


def test_weights_and_caches_of_the_draft_count_and_go(tiny_model: Path, drafts: dict[str, Path]) -> None:
    device.release_unused()
    before = device.active_nbytes()
    plain = open_engine(tiny_model)
    engine = open_engine(tiny_model, draft_path=drafts["perfect"])
    assert engine.weights_nbytes == 2 * plain.weights_nbytes
    assert engine.footprint.cache.token_nbytes == 2 * plain.footprint.cache.token_nbytes
    uid = engine.insert(request(PROMPTS[0], 100))
    for _ in range(6):
        engine.step()
    assert engine.cache_nbytes > 0
    engine.remove(uid)
    assert engine.cache_nbytes == 0
    plain.close()
    engine.close()
    assert device.active_nbytes() == before


def test_a_failed_step_loses_its_row_and_the_engine_goes_on(
    tiny_model: Path, drafts: dict[str, Path], reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(tiny_model, drafts["perfect"])
    engine.insert(request(PROMPTS[0], 100))
    with monkeypatch.context() as patched:
        patched.setattr(Drafting, "draft", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            finish(engine)
    [tokens] = run(engine, request(PROMPTS[0], 20))
    assert ids(tokens) == reference.greedy(PROMPTS[0], 20)
    engine.close()


def test_what_cannot_be_drafted_for_is_refused_with_the_reason(tmp_path: Path, tiny_model: Path) -> None:
    def refused(folder: Path, draft: Path, **changes: Any) -> str:
        device.release_unused()
        before = device.active_nbytes()
        with pytest.raises(InferdError) as failed:
            open_engine(folder, draft_path=draft, **changes)
        assert device.active_nbytes() == before
        return f"{failed.value.reason}: {failed.value.message}"

    larger = tiny_llama.build(tmp_path / "larger", hidden=128)
    assert "no plain KV caches" in refused(larger, tiny_model, kv_bits=8, kv_group_size=32)
    wider = tiny_architectures.build(tmp_path / "wider", "llama")
    assert refused(tiny_model, wider).endswith("its vocabulary has 160 tokens, not 263")
    assert refused(tiny_model, tmp_path / "x").startswith("MODEL_LOAD_FAILED: the draft model: the folder")
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    first, second, *_ = (vocabulary := tokenizer["model"]["vocab"])
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert refused(tiny_model, other) == (
        "MODEL_UNSUPPORTED: draft_model is not supported: its tokenizer has another vocabulary"
    )
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    shutil.copy(tiny_model / "tokenizer.json", other)
    assert "the draft model can't be loaded" in refused(tiny_model, other)
    windowed = tiny_architectures.build(tmp_path / "windowed", "gemma3_text")
    open_engine(windowed).close()  # the first model of a kind leaves a few bytes of compiled functions
    assert "no plain KV caches" in refused(windowed, windowed)
