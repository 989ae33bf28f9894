"""Output assembled from tokens: whatever the split, the same output."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.core.generation import FinishReason, OutputChoices, Token, TokenLogprob
from inferd_server.serving.assembly import Assembly
from inferd_server.text.tokenizer import Tokenizer

END_ID = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


@pytest.fixture
def assembly(tokenizer: Tokenizer) -> Callable[..., Assembly]:
    def make(stops: Sequence[str] = (), *, stop_ids: Sequence[int] = (), **output: object) -> Assembly:
        choices = OutputChoices(**output)  # type: ignore[arg-type]
        ids = frozenset(stop_ids)
        return Assembly(tokenizer.detokenizer(), stops, ids, choices, FinishReason.MAX_TOKENS)

    return make


def tokens_of(tokenizer: Tokenizer, text: str, ended: str) -> list[Token]:
    """The text's tokens; the output ends by `length` with the last one, or by an end id behind it."""
    tokens = [Token(0, i, TokenLogprob(i, -1.0)) for i in tokenizer.encode(text)]
    if ended == "length":
        tokens[-1].ended = "length"
    else:
        tokens.append(Token(0, END_ID, TokenLogprob(END_ID, -1.0), ended="end_id"))
    return tokens


def run(assembly: Assembly, tokens: list[Token], cuts: Sequence[int] = ()) -> tuple[str, list[int], int]:
    borders = sorted({0, len(tokens), *(cut for cut in cuts if 0 < cut < len(tokens))})
    text, ids, logprobs = "", [], 0
    for start, end in itertools.pairwise(borders):
        delta = assembly.add(tokens[start:end])
        text += delta.text
        ids += delta.token_ids
        logprobs += len(delta.logprobs)
        assert delta.completion_tokens == len(assembly.emitted_ids)
        if assembly.finish_reason is not None:
            break
    return text, ids, logprobs


def test_an_end_id_is_not_output(tokenizer: Tokenizer, assembly: Callable[..., Assembly]) -> None:
    made = assembly(token_ids=True, top_logprobs=0)
    text, ids, logprobs = run(made, tokens_of(tokenizer, "Paris", "end_id"))
    assert (text, len(ids), logprobs) == ("Paris", 5, 5)
    assert made.finish_reason is FinishReason.EOS


def test_a_stop_token_id_ends_by_stop(tokenizer: Tokenizer, assembly: Callable[..., Assembly]) -> None:
    made = assembly(stop_ids=[END_ID])
    run(made, tokens_of(tokenizer, "Paris", "end_id"))
    assert made.finish_reason is FinishReason.STOP


def test_ids_and_logprobs_come_only_when_asked_for(tokenizer: Tokenizer, assembly: Callable[..., Assembly]) -> None:
    text, ids, logprobs = run(assembly(), tokens_of(tokenizer, "Paris", "length"))
    assert (text, ids, logprobs) == ("Paris", [], 0)


def test_tokens_behind_a_stop_sequence_are_dropped(tokenizer: Tokenizer, assembly: Callable[..., Assembly]) -> None:
    made = assembly(["END"], token_ids=True)
    text, ids, _ = run(made, tokens_of(tokenizer, "a b END c d", "length"))
    assert text == "a b "
    assert len(ids) == len("a b END")
    assert (made.finish_reason, made.matched_stop) == (FinishReason.STOP, "END")


def test_a_stop_sequence_outranks_the_length_that_ends_with_it(
    tokenizer: Tokenizer, assembly: Callable[..., Assembly]
) -> None:
    made = assembly(["END"])
    text, _, _ = run(made, tokens_of(tokenizer, "a END", "length"))
    assert (text, made.finish_reason) == ("a ", FinishReason.STOP)


def test_a_held_back_prefix_comes_out_at_the_end(tokenizer: Tokenizer, assembly: Callable[..., Assembly]) -> None:
    made = assembly(["END"])
    text, _, _ = run(made, tokens_of(tokenizer, "a EN", "end_id"), cuts=[3])
    assert (text, made.finish_reason) == ("a EN", FinishReason.EOS)


def test_a_cut_character_ends_as_a_replacement(tokenizer: Tokenizer, assembly: Callable[..., Assembly]) -> None:
    tokens = tokens_of(tokenizer, "é", "length")[:1]
    tokens[0].ended = "length"
    assert run(assembly(), tokens)[0] == "\N{REPLACEMENT CHARACTER}"


@given(
    text=st.text(alphabet="abEND é🙂\n", min_size=1, max_size=40),
    stops=st.lists(st.text(alphabet="abEND é", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 60), max_size=8),
    ended=st.sampled_from(["length", "end_id"]),
)
def test_any_split_gives_the_whole_output(
    tiny_model: Path, text: str, stops: list[str], cuts: list[int], ended: str
) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    output = OutputChoices(token_ids=True, top_logprobs=0)
    tokens = tokens_of(tokenizer, text, ended)
    results = []
    for borders in ((), cuts):
        made = Assembly(tokenizer.detokenizer(), stops, frozenset(), output, FinishReason.MAX_TOKENS)
        results.append((run(made, tokens, borders), made.finish_reason, made.matched_stop))
    assert results[0] == results[1]
    (emitted, _, _), reason, matched = results[0]
    found = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert (reason is FinishReason.STOP) == bool(found)
    assert emitted == (text[: min(found) - len(matched)] if found else text)
