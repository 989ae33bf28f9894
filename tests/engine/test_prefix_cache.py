"""What was prefilled once is used again, and changes no token (greedy, float32)."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_server.core.constraints import Constraint, ConstraintKind
from inferd_server.core.generation import Token
from inferd_server.engine.engine import Engine
from inferd_server.text.constraints import build_vocabulary, compile_constraint
from inferd_server.text.tokenizer import Tokenizer
from support import tiny_architectures, tiny_llama
from support.engine_room import Reference, collect, finish, ids, open_engine, request, run

CUT = ["llama", "qwen3"]
WHOLE = ["gemma3_text", "mamba", "mamba2", "llama4"]
BATCHABLE_WHOLE = ["gemma3_text", "mamba", "mamba2"]
ROOM = 1 << 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("architectures")
    return {kind: tiny_architectures.build(root / kind, kind) for kind in [*CUT, *WHOLE]}


@pytest.fixture
def engine(folders: dict[str, Path], architecture: str) -> Iterator[Engine]:
    engine = open_engine(folders[architecture], prefill_step_size=64, prefix_cache_nbytes=ROOM)
    yield engine
    engine.close()


@pytest.fixture
def reference(folders: dict[str, Path], architecture: str) -> Reference:
    return Reference(folders[architecture])


def prompt(length: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(tiny_architectures.VOCABULARY_SIZE) for _ in range(length)]


def cached(tokens: list[Token]) -> int:
    """How much came from the cache; only the first token says so."""
    assert all(token.cached_tokens == 0 for token in tokens[1:])
    return tokens[0].cached_tokens


@pytest.mark.parametrize("architecture", [*CUT, *WHOLE])
def test_the_same_prompt_again_is_cached_but_for_its_last_token(engine: Engine, reference: Reference) -> None:
    for length in (65, 100, 129, 300):
        start = prompt(length, length)
        first, second = run(engine, request(start, 12))[0], run(engine, request(start, 12))[0]
        assert ids(first) == ids(second) == reference.greedy(start, 12)
        assert (cached(first), cached(second)) == (0, length - 1)


@pytest.mark.parametrize("architecture", CUT)
def test_prompts_that_begin_alike_share_that_beginning(engine: Engine, reference: Reference) -> None:
    common = prompt(150)
    run(engine, request(common + prompt(30, 1), 4))
    for seed in (2, 3):
        start = common + prompt(20, seed)
        [tokens] = run(engine, request(start, 12))
        assert ids(tokens) == reference.greedy(start, 12)
        assert 150 <= cached(tokens) <= 152


@pytest.mark.parametrize("architecture", [*CUT, *WHOLE])
def test_the_next_turn_of_a_conversation_finds_the_last_one_with_its_answer(
    engine: Engine, reference: Reference
) -> None:
    conversation = prompt(80)
    known = 0
    for turn in range(4):
        [tokens] = run(engine, request(conversation, 15))
        assert ids(tokens) == reference.greedy(conversation, 15)
        assert cached(tokens) == known
        known = len(conversation) + 14  # the answer's last token was never an input
        conversation = [*conversation, *ids(tokens), *prompt(10, turn + 1)]


@pytest.mark.parametrize("architecture", [*CUT, *BATCHABLE_WHOLE])
def test_a_token_that_ended_an_answer_is_part_of_what_was_seen(engine: Engine, reference: Reference) -> None:
    start = prompt(90)
    answer = reference.greedy(start, 12)
    ended = answer[: answer.index(answer[8]) + 1]
    others = [prompt(40, seed) for seed in (1, 2)]
    uids = [engine.insert(request(start, 12, end_ids=frozenset([answer[8]])))]
    uids += [engine.insert(request(other, 30)) for other in others]
    by_uid = finish(engine)
    assert ids(by_uid[uids[0]]) == ended
    assert [ids(by_uid[uid]) for uid in uids[1:]] == [reference.greedy(other, 30) for other in others]
    following = [*start, *ended, *prompt(10, 3)]
    [tokens] = run(engine, request(following, 12))
    assert ids(tokens) == reference.greedy(following, 12)
    assert cached(tokens) == len(start) + len(ended)


@pytest.mark.parametrize("architecture", [*CUT, *BATCHABLE_WHOLE])
def test_cached_and_uncached_rows_decode_together_and_every_token_is_exact(
    engine: Engine, reference: Reference
) -> None:
    source = random.Random(5)
    conversations = [prompt(70 + 13 * number, number) for number in range(4)]
    live: dict[int, list[int]] = {}
    got: dict[int, list[Token]] = {}
    for number in range(24):
        start = source.choice(conversations)[: source.choice([None, None, 66, 90])]
        start = [*start, *prompt(source.choice([0, 1, 20, 80]), number)]
        live[engine.insert(request(start, source.randrange(1, 20)))] = start
        for _ in range(source.randrange(8)):
            collect(got, engine.step().tokens)
        if source.random() < 0.2:
            engine.remove(source.choice(list(live)))
    finish(engine, got)
    for uid, tokens in got.items():
        assert ids(tokens) == reference.greedy(live[uid], len(tokens)), uid
    assert sum(tokens[0].cached_tokens > 0 for tokens in got.values()) >= 3


@pytest.mark.parametrize("architecture", ["llama", "mamba2"])
def test_what_is_stored_pins_no_batch_and_writing_on_changes_nothing_stored(engine: Engine) -> None:
    import mlx.core as mx

    mx.synchronize()
    before = mx.get_active_memory()
    starts = [prompt(100, seed) for seed in range(6)]
    answers = [ids(tokens) for tokens in run(engine, *(request(start, 40) for start in starts))]
    for _ in range(2):
        again = [run(engine, request(start, 40))[0] for start in starts]
        assert [ids(tokens) for tokens in again] == answers
        assert all(cached(tokens) == 99 for tokens in again)
    mx.synchronize()
    assert mx.get_active_memory() - before < 1.25 * engine.cache_nbytes
    engine.bound_prefix_cache(0)
    mx.synchronize()
    assert engine.cache_nbytes == 0
    assert mx.get_active_memory() - before < 5000


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_the_bound_of_bytes_holds_and_the_oldest_goes_first(folders: dict[str, Path], architecture: str) -> None:
    bound = 150_000
    engine = open_engine(folders[architecture], prefix_cache_nbytes=bound)
    for seed in range(8):
        run(engine, request(prompt(200, seed), 4))
        assert engine.cache_nbytes <= bound
    assert cached(run(engine, request(prompt(200, 7), 4))[0]) == 199
    assert cached(run(engine, request(prompt(200, 0), 4))[0]) == 0
    engine.close()


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_a_session_s_prefix_is_the_last_to_go(folders: dict[str, Path], architecture: str) -> None:
    engine = open_engine(folders[architecture], prefix_cache_nbytes=300_000)
    session = request(prompt(150, 100), 4, session_id="s")
    run(engine, session)
    for seed in range(8):
        run(engine, request(prompt(200, seed), 4))
    assert cached(run(engine, session)[0]) == 149
    engine.close()


@pytest.mark.parametrize("architecture", ["llama", "mamba2"])
def test_identities_share_nothing(engine: Engine) -> None:
    start = prompt(150)
    run(engine, request(start, 4, cache_identity="a"))
    assert cached(run(engine, request(start, 4, cache_identity="b"))[0]) == 0
    assert cached(run(engine, request(start, 4))[0]) == 0
    assert cached(run(engine, request(start, 4, cache_identity="a"))[0]) == 149


@pytest.mark.parametrize("architecture", ["llama"])
def test_a_prompt_prefilled_while_another_one_of_its_kind_decodes_is_cached_already(engine: Engine) -> None:
    start = prompt(200)
    first = engine.insert(request(start, 60))
    by_uid: dict[int, list[Token]] = {}
    while first not in by_uid:
        collect(by_uid, engine.step().tokens)
    second = engine.insert(request(start, 5))
    finish(engine, by_uid)
    assert cached(by_uid[second]) == 199
    assert ids(by_uid[second]) == ids(by_uid[first])[:5]


@pytest.mark.parametrize("architecture", ["llama"])
def test_a_failed_step_drops_what_was_stored(engine: Engine, reference: Reference) -> None:
    start = prompt(150)
    run(engine, request(start, 4))
    engine.insert(request(start, 4))
    engine._batch.launch = lambda: 1 / 0  # type: ignore[attr-defined]
    engine.step()  # prefill alone
    with pytest.raises(ZeroDivisionError):
        engine.step()
    [tokens] = run(engine, request(start, 4))
    assert cached(tokens) == 0
    assert ids(tokens) == reference.greedy(start, 4)


def test_a_resumed_sequence_finds_what_it_left(tiny_model: Path) -> None:
    engine, reference = open_engine(tiny_model, prefix_cache_nbytes=ROOM), Reference(tiny_model)
    start = prompt(100)
    whole = reference.greedy(start, 40)
    uid = engine.insert(request(start, 40))
    got: dict[int, list[Token]] = {}
    while len(got.get(uid, [])) < 20:
        collect(got, engine.step().tokens)
    engine.remove(uid)
    [tokens] = run(engine, request(start, 20, emitted_ids=tuple(whole[:20])))
    assert ids(tokens) == whole[20:]
    assert cached(tokens) == 119
    engine.close()


def test_a_quantised_model_s_prefixes_are_used_again(tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "quantised", quantization_bits=4)
    engine, reference = open_engine(folder, prefix_cache_nbytes=ROOM), Reference(folder)
    start = prompt(140)
    assert [cached(run(engine, request(start, 8))[0]) for _ in range(2)] == [0, 139]
    assert ids(run(engine, request(start, 8))[0]) == reference.greedy(start, 8)
    engine.close()


def test_constrained_sequences_store_what_they_really_saw(tiny_model: Path) -> None:
    """The model runs ahead of their tokens; the engine is left empty in the middle of a step when all have ended."""
    tokenizer = Tokenizer.load(tiny_model)
    choice = Constraint(ConstraintKind.CHOICE, options=("yes", "no, never"))
    grammar = compile_constraint(build_vocabulary(tokenizer), choice)
    engine, reference = open_engine(tiny_model, prefix_cache_nbytes=ROOM), Reference(tiny_model)
    ends = frozenset(tokenizer.end_ids)
    for seed in range(3):
        start = prompt(80 + seed, seed)
        constrained = request(start, 20, grammar=grammar, end_ids=ends)
        answers = run(engine, *[constrained] * (1 + seed % 2))
        following = [*start, *ids(answers[0]), *prompt(5, 9)]
        [tokens] = run(engine, request(following, 10))
        assert ids(tokens) == reference.greedy(following, 10)
        assert cached(tokens) >= len(start)
    engine.close()


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_an_unload_drops_everything(folders: dict[str, Path], kind: str) -> None:
    import mlx.core as mx

    mx.synchronize()
    before = mx.get_active_memory()
    engine = open_engine(folders[kind], prefix_cache_nbytes=ROOM)
    run(engine, request(prompt(200), 10), request(prompt(90, 1), 10, session_id="s"))
    assert engine.cache_nbytes > 0
    engine.close()
    assert mx.get_active_memory() - before < 1000
