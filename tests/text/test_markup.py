"""Output is taken apart by its markers, whatever the split, and nothing is lost."""

import itertools
import re
import time
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.core.generation import ToolCall
from inferd_server.text.families import REASONING, TOOL_CALLS, CallMarkers
from inferd_server.text.markup import MAX_CALL_CHARACTERS, MAX_STRAY_MARKERS, Kind, ReadCalls, Splitter

THINK = REASONING["think"]
CALLS = TOOL_CALLS["json_tools"]
Parts = list[tuple[str, str]]


def reads(text: str) -> Sequence[ToolCall]:
    """One call for each `f`, if there is nothing else."""
    return [ToolCall(str(i), "f", "{}") for i, _ in enumerate(text)] if set(text) == {"f"} else ()


def reads_nothing(text: str) -> Sequence[ToolCall]:
    return ()


def split(
    text: str,
    cuts: Iterable[int] = (),
    *,
    calls: CallMarkers | None = CALLS,
    read: ReadCalls = reads,
    in_reasoning: bool = False,
    cut: bool = False,
) -> Parts:
    """What the splitter makes of the text, neighbouring pieces of a kind put together."""
    splitter = Splitter(THINK, calls, read, in_reasoning=in_reasoning)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [piece for start, end in itertools.pairwise(borders) for piece in splitter.feed(text[start:end])]
    parts: Parts = []
    for piece in [*pieces, *splitter.flush(cut=cut)]:
        if piece.call is not None:
            parts.append(("CALL", piece.call.name + piece.call.id))
        elif parts and parts[-1][0] == piece.kind.name:
            parts[-1] = (piece.kind.name, parts[-1][1] + piece.text)
        else:
            parts.append((piece.kind.name, piece.text))
    return parts


def answer(text: str) -> Parts:
    return [("ANSWER", text)]


def thought(text: str) -> Parts:
    return [("REASONING", text)]


CALL: Parts = [("CALL", "f0")]

CASES: list[tuple[str, Parts]] = [
    ("", []),
    ("plain <b>text</b> < 3", answer("plain <b>text</b> < 3")),
    ("<think>hm</think>yes", thought("hm") + answer("yes")),
    ("<think>\n\nhm\n</think>\n\nyes\n", thought("hm\n") + answer("yes\n")),
    ("<think></think>yes", answer("yes")),
    ("<think>hm", thought("hm")),
    ("<think>hm</thi", thought("hm</thi")),
    ("a</think>b", answer("a</think>b")),
    ("a<think>b</think>c<think>d</think>e", answer("a") + thought("b") + answer("c") + thought("d") + answer("e")),
    ("<tool_call>f</tool_call>", CALL),
    ("Look.\n<tool_call>f</tool_call>\n", answer("Look.\n") + CALL),
    ("<tool_call>f</tool_call>\n<tool_call>f</tool_call> so", CALL + CALL + answer("so")),
    ("<tool_call>ff</tool_call>", [("CALL", "f0"), ("CALL", "f1")]),
    ("<think>hm<tool_call>f</tool_call>so", thought("hm") + CALL + answer("so")),
    ("<think>hm</think>\n<tool_call>f</tool_call>", thought("hm") + CALL),
    ("<tool_call>no</tool_call>\nso", answer("<tool_call>no</tool_call>\nso")),
    ("<tool_call> \nno", answer("<tool_call> \nno")),
    ("<think>a <tool_call> is</think>b", thought("a <tool_call> is") + answer("b")),
    ("<tool_call><tool_call>f</tool_call>", answer("<tool_call>") + CALL),
    ("<tool_call>no</tool_call><tool_call>f</tool_call>", answer("<tool_call>no</tool_call>") + CALL),
    ("<tool_call>f", CALL),
    ("<tool_call>f</tool_ca", answer("<tool_call>f</tool_ca")),
    ("<tool_call></tool_call>", answer("<tool_call></tool_call>")),
    ("<<<think>>a</think></think>b", answer("<<") + thought(">a") + answer("</think>b")),
    ("</tool_call>", answer("</tool_call>")),
]


@pytest.mark.parametrize(("text", "parts"), CASES)
def test_an_output_is_taken_apart(text: str, parts: Parts) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(("text", "parts"), CASES)
def test_a_cut_at_every_place_and_at_all_places_changes_nothing(text: str, parts: Parts) -> None:
    for at in range(1, len(text)):
        assert split(text, [at]) == parts
    assert split(text, range(len(text))) == parts


FRAGMENTS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "f", "<", "</t", " ", "\n", "a", "<tool_", "🙂")
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join)


@given(text=TEXTS, cuts=st.lists(st.integers(1, 120), max_size=10), in_reasoning=st.booleans(), cut=st.booleans())
def test_any_split_gives_the_same_parts(text: str, cuts: list[int], in_reasoning: bool, cut: bool) -> None:
    whole = split(text, in_reasoning=in_reasoning, cut=cut)
    assert split(text, cuts, in_reasoning=in_reasoning, cut=cut) == whole


@given(text=TEXTS, cuts=st.lists(st.integers(1, 120), max_size=10), cut=st.booleans())
def test_what_is_no_call_is_text_to_the_last_character(text: str, cuts: list[int], cut: bool) -> None:
    splitter = Splitter(None, CALLS, reads_nothing)
    borders = sorted({0, len(text), *(at for at in cuts if at < len(text))})
    pieces = [piece for start, end in itertools.pairwise(borders) for piece in splitter.feed(text[start:end])]
    assert "".join(piece.text for piece in [*pieces, *splitter.flush(cut=cut)]) == text


@given(text=TEXTS)
def test_without_stray_markers_the_parts_are_those_of_a_regular_expression(text: str) -> None:
    tokens = re.findall(
        r"<tool_call>f+</tool_call>|<think>.*?</think>|(?:(?!</?think>|</?tool_call>).)+", text, re.DOTALL
    )
    if "".join(tokens) != text or any("_call>" in t for t in tokens if t.startswith("<think>")):
        return
    expected: dict[str, str] = {"ANSWER": "", "REASONING": "", "CALL": ""}
    for token in tokens:
        if token.startswith("<tool_call>"):
            expected["CALL"] += token[11:-12]
        elif token.startswith("<think>"):
            expected["REASONING"] += token[7:-8]
        else:
            expected["ANSWER"] += token
    found = dict.fromkeys(expected, "")
    for kind, part in split(text):
        found[kind] += part[:1] if kind == "CALL" else part
    assert {k: re.sub(r"\s", "", v) for k, v in found.items()} == {k: re.sub(r"\s", "", v) for k, v in expected.items()}


def test_an_output_may_begin_in_the_reasoning() -> None:
    assert split("\nhm</think>\nyes", in_reasoning=True) == thought("hm") + answer("yes")
    assert split("hm", in_reasoning=True) == thought("hm")


def test_without_tools_their_markers_are_text() -> None:
    text = "<tool_call>f</tool_call>"
    assert split(f"<think>{text}</think>{text}", calls=None) == thought(text) + answer(text)


def test_without_an_end_marker_calls_go_on_to_the_end() -> None:
    calls = TOOL_CALLS["mistral"]
    assert split("so [TOOL_CALLS]f", calls=calls) == answer("so ") + CALL
    assert split("so [TOOL_CALLS]f", calls=calls, cut=True) == answer("so ") + CALL, "as whole as it will ever be"
    assert split("[TOOL_CALLS]no", calls=calls) == answer("[TOOL_CALLS]no")


def test_a_call_cut_by_the_length_is_text() -> None:
    assert split("so <tool_call>f", cut=True) == answer("so <tool_call>f")


def test_marks_of_structure_belong_to_no_text() -> None:
    splitter = Splitter(REASONING["harmony"])
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes <|start|>"
    pieces = [piece for character in text for piece in splitter.feed(character)] + splitter.flush(cut=False)
    assert "".join(p.text for p in pieces if p.kind is Kind.REASONING) == "hm"
    assert "".join(p.text for p in pieces if p.kind is Kind.ANSWER) == "yes <|start|>"


@pytest.mark.parametrize("markers", [THINK, CALLS])
def test_only_the_beginning_of_a_marker_is_held_back(markers: CallMarkers) -> None:
    for length in range(1, len(markers.start)):
        splitter = Splitter(THINK, CALLS, reads)
        [piece] = splitter.feed("yes" + markers.start[:length])
        assert piece.text == "yes"
        [piece] = splitter.feed("!")
        assert piece.text == markers.start[:length] + "!"


def test_text_is_given_out_at_once() -> None:
    splitter = Splitter(THINK, CALLS, reads)
    for character in "a b\n{}>":
        assert [piece.text for piece in splitter.feed(character)] == [character]


def test_an_endless_call_is_text_as_soon_as_it_is_too_long() -> None:
    splitter = Splitter(THINK, CALLS, reads)
    pieces = splitter.feed("<tool_call>" + "f" * MAX_CALL_CHARACTERS)
    assert pieces == []
    pieces = splitter.feed("f</too")
    assert "".join(piece.text for piece in pieces) == "<tool_call>" + "f" * (MAX_CALL_CHARACTERS + 1) + "</too"
    assert splitter.flush(cut=False) == []


def test_a_call_of_the_greatest_length_is_read() -> None:
    text = f"<tool_call>{'f' * MAX_CALL_CHARACTERS}</tool_call>"
    assert len(split(text)) == MAX_CALL_CHARACTERS
    longer = text.replace("ff", "fff", 1)
    assert split(longer) == split(longer, [MAX_CALL_CHARACTERS + 13]) == answer(longer)


def test_after_a_few_stray_markers_calls_are_not_looked_for() -> None:
    asked: list[str] = []

    def read(text: str) -> Sequence[ToolCall]:
        asked.append(text)
        return reads(text)

    good, stray = "<tool_call>f</tool_call>", "<tool_call>x</tool_call>"
    assert split(stray * (MAX_STRAY_MARKERS - 1) + good, read=read)[-1] == CALL[0]
    assert split(stray * MAX_STRAY_MARKERS + good + "<think>hm", read=read)[-1] == ("REASONING", "hm")
    assert len(asked) == 2 * MAX_STRAY_MARKERS


def test_a_long_output_of_stray_markers_costs_no_time() -> None:
    text = "<tool_call>" * 10_000
    started = time.process_time()
    assert split(text, range(0, len(text), 7), read=reads_nothing) == answer(text)
    assert time.process_time() - started < 2
