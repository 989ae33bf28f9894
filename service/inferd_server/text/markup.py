"""Output text taken apart while it arrives: the answer, the reasoning, and tool calls, by a family's markers.

The result does not depend on how the text is split. What may be the beginning of a marker is held back, and a piece
with tool calls until its end; nothing else is. Markers belong to no text, nor does the white space behind one. A piece
that turns out to be no tool call is text: its opening marker is given out as such, and what follows is looked at
afresh, so that an answer behind a stray marker is an answer. Stray markers, and how much is held back, are bounded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from inferd_server.core.generation import ToolCall

from .families import CallMarkers, ReasoningMarkers
from .stopping import Automaton

MAX_CALL_CHARACTERS = 65_536
"""A piece longer than that is no tool call."""

MAX_STRAY_MARKERS = 3
"""After so many pieces that were no tool calls, the rest of an output is not searched for them any more."""

ReadCalls = Callable[[str], Sequence[ToolCall]]
"""The calls in the text between two markers; empty if it is none."""


class Kind(Enum):
    """What a piece of text is."""

    ANSWER = 1
    REASONING = 2
    CALLS = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Some more of the answer or of the reasoning; or one tool call."""

    kind: Kind
    text: str = ""
    call: ToolCall | None = None


class _Edges:
    """The markers that count inside one kind of text, and the kind that begins behind each."""

    def __init__(self, targets: dict[str, Kind]) -> None:
        self.targets = targets
        self.automaton = Automaton(list(targets)) if targets else None


def _edges(reasoning: ReasoningMarkers | None, calls: CallMarkers | None) -> dict[Kind, _Edges]:
    answer: dict[str, Kind] = {}
    thought: dict[str, Kind] = {}
    if reasoning is not None:
        answer |= dict.fromkeys(reasoning.dropped, Kind.ANSWER) | {reasoning.start: Kind.REASONING}
        thought[reasoning.end] = Kind.ANSWER
    if calls is not None:
        answer[calls.start] = thought[calls.start] = Kind.CALLS
    inside = {calls.end: Kind.ANSWER} if calls is not None and calls.end else {}
    return {Kind.ANSWER: _Edges(answer), Kind.REASONING: _Edges(thought), Kind.CALLS: _Edges(inside)}


class Splitter:
    """Takes one output apart. Feed it all text, then flush it."""

    def __init__(
        self,
        reasoning: ReasoningMarkers | None,
        calls: CallMarkers | None = None,
        read_calls: ReadCalls = lambda _: (),
        *,
        in_reasoning: bool = False,
    ) -> None:
        """`in_reasoning`: the prompt ends with the mark of its start. `read_calls` must not raise."""
        self._edges = _edges(reasoning, calls)
        self._edges_without_calls = _edges(reasoning, None)
        self._ends_calls = calls is not None and bool(calls.end)
        self._read_calls = read_calls
        self._kind = Kind.REASONING if in_reasoning else Kind.ANSWER
        self._after_marker = in_reasoning  # white space is still to be dropped
        self._progress = 0  # state of the kind's automaton
        self._held = ""  # the marker begun
        self._body: list[str] = []  # of a piece with calls
        self._body_length = 0
        self._opening = ("", Kind.ANSWER)  # its opening marker, and the kind of text around it
        self._stray_markers = 0

    def feed(self, text: str) -> list[Piece]:
        """Take more text; returns what is certain now, in order."""
        pieces: list[Piece] = []
        self._run(text, pieces)
        return pieces

    def flush(self, *, cut: bool) -> list[Piece]:
        """What is held back, at the end of the output. `cut`: it ends by its length, so an open call is not whole."""
        pieces: list[Piece] = []
        while self._kind is Kind.CALLS:
            self._put(self._take_held(), pieces)
            is_whole = not (cut and self._ends_calls)
            self._run(self._close("", pieces) if is_whole else self._reject(pieces), pieces)
        self._put(self._take_held(), pieces)
        return pieces

    def _run(self, text: str, pieces: list[Piece]) -> None:
        while text:
            before, marker, after = self._next_marker(text)
            self._put(before, pieces)
            if self._body_length > MAX_CALL_CHARACTERS:
                text = self._reject(pieces) + marker + after
            else:
                text = self._cross(marker, pieces) + after if marker else ""

    def _next_marker(self, text: str) -> tuple[str, str, str]:
        """(text before the next marker, the marker or "", text behind it); the beginning of a marker is held."""
        automaton = self._edges[self._kind].automaton
        if automaton is None:
            return text, "", ""
        self._progress, end, marker = automaton.run(self._progress, text)
        end += len(self._held)
        seen = self._held + text
        if marker is None:
            safe = len(seen) - automaton.depths[self._progress]
            self._held = seen[safe:]
            return seen[:safe], "", ""
        self._take_held()
        return seen[: end - len(marker)], marker, seen[end:]

    def _take_held(self) -> str:
        held, self._held, self._progress = self._held, "", 0
        return held

    def _put(self, text: str, pieces: list[Piece]) -> None:
        """Give text of the present kind out, or keep it if it may be a call."""
        if self._after_marker:
            text = text.lstrip()
        if not text:
            return
        self._after_marker = False
        if self._kind is Kind.CALLS:
            self._body.append(text)
            self._body_length += len(text)
        else:
            pieces.append(Piece(self._kind, text))

    def _cross(self, marker: str, pieces: list[Piece]) -> str:
        """Go over a marker; returns text to be looked at afresh."""
        if self._kind is Kind.CALLS:
            return self._close(marker, pieces)
        target = self._edges[self._kind].targets[marker]
        if target is Kind.CALLS:
            self._opening = (marker, self._kind)
        self._kind = target
        self._after_marker = target is not Kind.CALLS
        return ""

    def _close(self, marker: str, pieces: list[Piece]) -> str:
        """The end of a piece with calls, or of one that only looked so; returns text to be looked at afresh."""
        calls = self._read_calls("".join(self._body))
        if not calls:
            return self._reject(pieces) + marker
        pieces += [Piece(Kind.CALLS, call=call) for call in calls]
        self._take_body()
        self._kind = Kind.ANSWER
        self._after_marker = True
        return ""

    def _reject(self, pieces: list[Piece]) -> str:
        """The piece is no call: its opening marker is text; returns what followed it, to be looked at afresh."""
        opening, self._kind = self._opening
        pieces.append(Piece(self._kind, opening))
        self._stray_markers += 1
        if self._stray_markers == MAX_STRAY_MARKERS:
            self._edges = self._edges_without_calls
        return self._take_body() + self._take_held()

    def _take_body(self) -> str:
        body = "".join(self._body)
        self._body, self._body_length = [], 0
        return body
