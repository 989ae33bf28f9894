"""Stop sequences: what is found, what is held back, and that the split of the text never matters."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.text.stopping import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=30)
SEQUENCES = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def expected(text: str, sequences: list[str]) -> tuple[str, str | None]:
    """By definition: the first position at which any sequence is complete; the longest one complete there."""
    for end in range(len(text) + 1):
        complete = [s for s in sequences if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, sequences: list[str]) -> int:
    """By definition: the longest end of the text that begins a sequence without completing it."""
    sizes = [n for s in sequences for n in range(1, len(s)) if text.endswith(s[:n])]
    return max(sizes, default=0)


def test_text_without_stop_sequences_passes_through() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_the_shorter_of_two_beginnings_wins_because_it_is_complete_first() -> None:
    assert StopMatcher(["abcd", "ab"]).feed("xabcd") == ("x", "ab")


def test_a_sequence_complete_inside_a_longer_candidate_wins() -> None:
    assert StopMatcher(["abcd", "bc"]).feed("xabcd") == ("xa", "bc")


def test_of_two_complete_at_once_the_longer_wins() -> None:
    assert StopMatcher(["b", "ab"]).feed("xab") == ("x", "ab")


def test_a_sequence_over_many_pieces_is_cut_exactly() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    fed = [matcher.feed(piece) for piece in ("Hi\n", "\n", "Us", "er", ": no")]
    assert [text for text, _ in fed] == ["Hi", "", "", "", ""]
    assert fed[-1][1] == "\n\nUser:"


def test_text_that_turns_out_harmless_is_released_at_once() -> None:
    matcher = StopMatcher(["</s>"])
    assert matcher.feed("a</") == ("a", None)
    assert matcher.feed("b") == ("</b", None)


def test_after_a_match_nothing_more_comes_out() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.feed("ax") == ("a", "x")
    assert matcher.feed("more") == ("", "x")
    assert matcher.flush() == ""


def test_flush_gives_the_held_back_text_once() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.feed("a sto") == ("a ", None)
    assert matcher.flush() == "sto"
    assert matcher.flush() == ""
    assert matcher.feed("p") == ("p", None)


@pytest.mark.parametrize("sequence", ["]", "^", "-", "\\", "[a", "\n", "\0", "🙂"])
def test_characters_with_a_meaning_in_patterns_are_literal(sequence: str) -> None:
    assert StopMatcher([sequence]).feed(f"x{sequence}y") == ("x", sequence)


@given(LETTERS, SEQUENCES)
def test_a_match_is_what_the_definition_says(text: str, sequences: list[str]) -> None:
    matcher = StopMatcher(sequences)
    emitted, matched = matcher.feed(text)
    assert (emitted + matcher.flush(), matched) == expected(text, sequences)


@given(st.lists(st.text(alphabet="ab", max_size=4), max_size=12), SEQUENCES)
def test_any_split_gives_the_same_and_holds_back_no_more_than_needed(pieces: list[str], sequences: list[str]) -> None:
    matcher, seen, emitted, matched = StopMatcher(sequences), "", "", None
    for piece in pieces:
        text, matched = matcher.feed(piece)
        seen, emitted = seen + piece, emitted + text
        if matched is not None:
            break
        assert len(seen) - len(emitted) == held_back(seen, sequences)
    emitted += matcher.flush()
    assert (emitted, matched) == expected("".join(pieces), sequences)


def test_a_long_piece_costs_time_linear_in_its_length() -> None:
    def seconds(length: int) -> float:
        matcher = StopMatcher(["a" * 2000 + "b"])
        started = time.thread_time()  # not what others take of the machine
        matcher.feed("a" * length)
        return time.thread_time() - started

    small = min(seconds(20_000) for _ in range(5))
    large = min(seconds(200_000) for _ in range(5))
    assert large < 40 * small  # a quadratic one: 100
