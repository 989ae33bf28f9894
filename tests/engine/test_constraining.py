"""Constrained rows follow their grammars, alone and in a batch, and disturb nobody."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inferd_server.core.constraints import Constraint, ConstraintBroken, ConstraintKind, Grammar
from inferd_server.core.generation import DecodeRequest, Sampling, Token
from inferd_server.engine.engine import Engine
from inferd_server.text.grammars import build_vocabulary, compile_constraint
from inferd_server.text.tokenizer import Tokenizer
from support.engine_room import GREEDY, Reference, collect, finish, ids, open_engine, request, run

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
DRAWN = Sampling(temperature=1.3, top_p=0.95, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=7)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> dict[str, Grammar]:
    vocabulary = build_vocabulary(tokenizer)
    constraints = {
        "schema": Constraint(ConstraintKind.JSON_SCHEMA, PERSON),
        "regex": Constraint(ConstraintKind.REGEX, "(ab|cd){3,9}e"),
        "choice": Constraint(ConstraintKind.CHOICE, options=("yes", "no", "perhaps not")),
        "digits": Constraint(ConstraintKind.REGEX, "[0-9]*"),
    }
    return {name: compile_constraint(vocabulary, constraint) for name, constraint in constraints.items()}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = open_engine(tiny_model, prefill_step_size=32)
    yield engine
    engine.close()


class Asks:
    """Makes requests for the tiny model."""

    def __init__(self, tokenizer: Tokenizer, grammars: dict[str, Grammar]) -> None:
        self._tokenizer = tokenizer
        self._grammars = grammars

    def __call__(self, prompt: str, kind: str = "", tokens: int = 60, sampling: Sampling = GREEDY) -> DecodeRequest:
        grammar = self._grammars[kind] if kind else None
        end_ids = self._tokenizer.end_ids if kind else frozenset()
        return request(self._tokenizer.encode(prompt), tokens, sampling, grammar=grammar, end_ids=end_ids)


@pytest.fixture(scope="module")
def ask(tokenizer: Tokenizer, grammars: dict[str, Grammar]) -> Asks:
    return Asks(tokenizer, grammars)


def text_of(tokenizer: Tokenizer, tokens: Sequence[Token]) -> str:
    assert not tokens[-1].failure
    return tokenizer.decode([token.token_id for token in tokens if token.ended != "end_id"])


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_an_output_follows_its_grammar_to_the_end(
    engine: Engine, ask: Asks, tokenizer: Tokenizer, sampling: Sampling
) -> None:
    [tokens] = run(engine, ask("who is it?", "choice", sampling=sampling))
    assert tokens[-1].ended == "end_id"
    assert text_of(tokenizer, tokens) in {"yes", "no", "perhaps not"}


def test_a_cut_output_ends_by_length(engine: Engine, ask: Asks) -> None:
    [tokens] = run(engine, ask("who is it?", "schema", 5))
    assert [token.ended for token in tokens] == ["", "", "", "", "length"]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_in_a_mixed_batch_every_row_gets_the_tokens_that_it_gets_alone(
    engine: Engine, ask: Asks, tokenizer: Tokenizer, sampling: Sampling
) -> None:
    kinds = ["schema", "", "regex", "choice", "", "schema", "digits"]
    requests = [ask(f"prompt {i} " * (i + 1), kind, 40, sampling) for i, kind in enumerate(kinds)]
    alone = [ids(run(engine, each)[0]) for each in requests]
    assert [ids(tokens) for tokens in run(engine, *requests)] == alone


def test_free_rows_get_the_tokens_of_mlx_lm_beside_constrained_ones(
    engine: Engine, ask: Asks, reference: Reference
) -> None:
    free = [ask("a free row", tokens=30), ask("another, longer free row", tokens=50)]
    tokens = run(engine, free[0], ask("x", "choice"), ask("y", "schema"), free[1], ask("z", "regex"))
    for each, answer in zip(free, [tokens[0], tokens[3]], strict=True):
        assert ids(answer) == reference.greedy(each.prompt_ids, each.max_tokens)


def test_rows_that_join_and_leave_at_any_step_change_nothing(engine: Engine, ask: Asks) -> None:
    kinds = ["schema", "choice", "", "regex", "digits", "schema", "", "choice"]
    requests = [ask(f"{i} comes at step {i * 2}", kind, 30) for i, kind in enumerate(kinds)]
    alone = [ids(run(engine, each)[0]) for each in requests]
    uids, by_uid = [], {}
    for step in range(24):
        if step % 2 == 0 and step // 2 < len(requests):
            uids.append(engine.insert(requests[step // 2]))
        if step == 13:
            engine.remove(uids[0])
        collect(by_uid, engine.step().tokens)
    finish(engine, by_uid)
    for number, uid in enumerate(uids):
        got = ids(by_uid[uid])
        assert got == (alone[number][: len(got)] if number == 0 else alone[number]), number


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_resumed_output_goes_on_where_its_grammar_was(engine: Engine, ask: Asks, sampling: Sampling) -> None:
    whole_request = ask("an interrupted request", "schema", 60, sampling)
    whole = ids(run(engine, whole_request)[0])
    for emitted in (1, 4, len(whole) - 1):
        resumed = replace(whole_request, emitted_ids=tuple(whole[:emitted]), max_tokens=60 - emitted)
        [rest] = run(engine, resumed)
        assert whole[:emitted] + ids(rest) == whole


class BrokenGrammar:
    """Breaks when asked for the mask of the token at a position, or when given that token."""

    def __init__(self, position: int, *, at: str, allowed: bytes = b"\xff" * 64) -> None:
        self.position, self.at, self.mask = position, at, allowed

    def matcher(self) -> "BrokenMatcher":
        return BrokenMatcher(self)


class BrokenMatcher:
    def __init__(self, grammar: BrokenGrammar) -> None:
        self._grammar = grammar
        self._taken = 0

    def allowed(self) -> bytes:
        if self._grammar.at == "allowed" and self._taken == self._grammar.position:
            raise ConstraintBroken("too costly")
        return self._grammar.mask

    def accept(self, taken: Sequence[int]) -> None:
        self._taken += len(taken)
        if self._grammar.at == "accept" and self._taken > self._grammar.position:
            raise ConstraintBroken("not allowed")


@pytest.mark.parametrize("position", [0, 1, 5])
@pytest.mark.parametrize("at", ["allowed", "accept"])
def test_a_broken_matcher_fails_its_own_row_alone(engine: Engine, ask: Asks, position: int, at: str) -> None:
    neighbours = [ask("a neighbour", "schema"), ask("a free neighbour")]
    alone = [ids(run(engine, each)[0]) for each in neighbours]
    broken = replace(ask("broken"), grammar=BrokenGrammar(position, at=at))
    first, tokens, second = run(engine, neighbours[0], broken, neighbours[1])
    assert [ids(first), ids(second)] == alone
    assert tokens[-1].failure == ("too costly" if at == "allowed" else "not allowed")
    assert len(tokens) == position + (1 if at == "allowed" else 2)
    assert not any(token.failure for token in tokens[:-1])


@pytest.mark.parametrize("mask", [b"", b"\x00" * 64, b"\x00" * 64 + b"\xff"], ids=["short", "none", "beyond the width"])
def test_a_grammar_that_leaves_no_token_of_the_model_fails_its_row(engine: Engine, ask: Asks, mask: bytes) -> None:
    [tokens] = run(engine, replace(ask("nothing"), grammar=BrokenGrammar(99, at="", allowed=mask)))
    assert [token.failure for token in tokens] == ["the constraint allows only tokens that the model does not have"]


def test_a_mask_shorter_than_the_vocabulary_forbids_the_rest(engine: Engine, ask: Asks) -> None:
    [tokens] = run(engine, replace(ask("short", tokens=20), grammar=BrokenGrammar(99, at="", allowed=b"\x00\x07")))
    assert set(ids(tokens)) <= {8, 9, 10}


def test_a_replay_that_its_grammar_refuses_fails_the_row(engine: Engine, ask: Asks) -> None:
    resumed = replace(ask("resumed", "digits"), emitted_ids=tuple(ask("letters").prompt_ids))
    [tokens] = run(engine, resumed)
    assert "satisfy" in tokens[-1].failure
    assert len(tokens) == 1
