"""Stop sequences in text that arrives piece by piece.

An Aho-Corasick automaton: each character is looked at once, whatever the number of sequences, and the depth of the
state is exactly the length of the text that has to be held back.
"""

import re
from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Finds the stop sequence that is complete first, and lets out all text that can't belong to one.

    Of two sequences complete at the same character the longer wins, so "ab" ends a text before "abcd" does, and
    "bc" before "abcd". The result does not depend on how the text is split.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        """`sequences` are literal texts; empty ones are ignored. Costs time linear in their total length."""
        self._states = Automaton(sequences) if any(sequences) else None
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take more text; returns (text that is safe to emit, the matched sequence or None).

        The matched sequence and what follows it are never emitted. After a match, returns ("", the same sequence).
        """
        if self._states is None:
            return text, None
        if self._matched is not None:
            return "", self._matched
        self._state, end, self._matched = self._states.run(self._state, text)
        seen = self._held + text
        if self._matched is not None:
            stop = len(self._held) + end - len(self._matched)
            self._held = ""
            return seen[:stop], self._matched
        safe = len(seen) - self._states.depths[self._state]
        self._held = seen[safe:]
        return seen[:safe], None

    def flush(self) -> str:
        """The text held back, when the output ends without a match. Further text starts afresh."""
        held, self._held, self._state = self._held, "", 0
        return held


class Automaton:
    """States are prefixes of the sequences, 0 the empty one; `depths[s]` is the length of state s. Immutable."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self.depths: list[int] = [0]
        self._next: list[dict[str, int]] = [{}]
        self._fallback: list[int] = [0]
        self._complete: list[str | None] = [None]
        for sequence in filter(None, sequences):
            self._insert(sequence)
        self._link()
        firsts = "".join(map(re.escape, self._next[0]))
        self._first = re.compile(f"[{firsts}]")

    def _insert(self, sequence: str) -> None:
        state = 0
        for character in sequence:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self.depths)
                self.depths.append(self.depths[state] + 1)
                self._next.append({})
                self._fallback.append(0)
                self._complete.append(None)
            state = following
        self._complete[state] = sequence

    def _link(self) -> None:
        """Breadth first: where to go on when a state has no way forward, and what ends at it besides itself."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                fallback = self._step(self._fallback[state], character)
                self._fallback[following] = fallback
                if self._complete[following] is None:
                    self._complete[following] = self._complete[fallback]
                waiting.append(following)

    def _step(self, state: int, character: str) -> int:
        following = self._next[state].get(character)
        while following is None and state:
            state = self._fallback[state]
            following = self._next[state].get(character)
        return following or 0

    def run(self, state: int, text: str) -> tuple[int, int, str | None]:
        """Walk `text` from `state`: (state, characters read, the sequence that became complete or None)."""
        at, length = 0, len(text)
        while at < length:
            if not state:  # nothing begun: jump to the next character that begins a sequence
                found = self._first.search(text, at)
                if found is None:
                    return 0, length, None
                at = found.start()
            state = self._step(state, text[at])
            at += 1
            complete = self._complete[state]
            if complete is not None:
                return state, at, complete
        return state, length, None
