"""Output assembled from tokens: whatever the split, the same output."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.core.generation import FinishReason, OutputChoices, Token, TokenLogprob, ToolCall
from inferd_server.serving.assembly import Assembly
from inferd_server.text.families import REASONING, TOOL_CALLS
from inferd_server.text.markup import Splitter
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


# --- reasoning and tool calls ---


def reads(text: str) -> list[ToolCall]:
    """`f` and an argument."""
    return [ToolCall("i", "f", text[1:])] if text.startswith("f") else []


def taken_apart(
    tokenizer: Tokenizer, text: str, *, cuts: Sequence[int] = (), stops: Sequence[str] = (), ended: str = "end_id"
) -> tuple[str, str, list[tuple[int, str]], FinishReason | None]:
    """(answer, reasoning, (index, arguments) of each call, why it ended)."""
    splitter = Splitter(REASONING["think"], TOOL_CALLS["json_tools"], reads)
    output = OutputChoices(token_ids=True)
    made = Assembly(tokenizer.detokenizer(), stops, frozenset(), output, FinishReason.MAX_TOKENS, splitter)
    tokens = tokens_of(tokenizer, text, ended)
    borders = sorted({0, len(tokens), *(cut for cut in cuts if 0 < cut < len(tokens))})
    answer, reasoning, calls = "", "", []
    for start, end in itertools.pairwise(borders):
        delta = made.add(tokens[start:end])
        answer += delta.text
        reasoning += delta.reasoning
        calls += [(each.index, each.call.arguments_json) for each in delta.tool_calls]
        if made.finish_reason is not None:
            break
    return answer, reasoning, calls, made.finish_reason


CALL = "<tool_call>f1</tool_call>"


@pytest.mark.parametrize(
    ("text", "stops", "ended", "expected"),
    [
        (f"<think>hm</think>so{CALL}{CALL}", (), "end_id", ("so", "hm", [(0, "1"), (1, "1")], FinishReason.TOOL_CALLS)),
        (f"{CALL}so", (), "end_id", ("so", "", [(0, "1")], FinishReason.TOOL_CALLS)),
        (f"{CALL}so", (), "length", ("so", "", [(0, "1")], FinishReason.MAX_TOKENS)),
        (f"{CALL}so<th", (), "length", ("so<th", "", [(0, "1")], FinishReason.MAX_TOKENS)),
        (CALL[:-1], (), "length", (CALL[:-1], "", [], FinishReason.MAX_TOKENS)),
        ("<think>END</think>a EN", ["END"], "end_id", ("a EN", "END", [], FinishReason.EOS)),
        ("<think>hm</think>a END b", ["END"], "end_id", ("a ", "hm", [], FinishReason.STOP)),
        ("a E<think>hm</think>ND b", ["END"], "end_id", ("a ", "hm", [], FinishReason.STOP)),
        (f"a EN{CALL}", ["END"], "end_id", ("a EN", "", [(0, "1")], FinishReason.TOOL_CALLS)),
        (f"END{CALL}", ["END"], "end_id", ("", "", [], FinishReason.STOP)),
        ("<tool_call>END</tool_call>b", ["END"], "end_id", ("<tool_call>", "", [], FinishReason.STOP)),
        ("<tool_call>fEND</tool_call>b", ["END"], "end_id", ("b", "", [(0, "END")], FinishReason.TOOL_CALLS)),
        ("so <tool_call>xEND", ["END"], "end_id", ("so <tool_call>x", "", [], FinishReason.STOP)),
        (
            "<tool_call>xEND<think>hm</think></tool_call>",
            ["END"],
            "end_id",
            ("<tool_call>x", "", [], FinishReason.STOP),
        ),
        ("so <th", ["<the"], "end_id", ("so <th", "", [], FinishReason.EOS)),
    ],
)
def test_reasoning_calls_and_stops_together(
    tokenizer: Tokenizer, text: str, stops: list[str], ended: str, expected: object
) -> None:
    for cuts in ((), range(200), (3, 4), (20,)):
        assert taken_apart(tokenizer, text, cuts=cuts, stops=stops, ended=ended) == expected


PARTS = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "f", "EN", "D", "<", " ", "é"])


@given(
    text=st.lists(PARTS, min_size=1, max_size=14).map("".join),
    stops=st.lists(st.text(alphabet="EN<D", min_size=1, max_size=3), max_size=2),
    cuts=st.lists(st.integers(1, 60), max_size=8),
    ended=st.sampled_from(["length", "end_id"]),
)
def test_any_split_is_taken_apart_alike(
    tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int], ended: str
) -> None:
    whole = taken_apart(tokenizer, text, stops=stops, ended=ended)
    assert taken_apart(tokenizer, text, cuts=cuts, stops=stops, ended=ended) == whole
    assert taken_apart(tokenizer, text, cuts=range(200), stops=stops, ended=ended) == whole


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
