"""What is measured, said once: the floor and the client build the same requests from it, in processes of their own."""

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Trial:
    """`waves` times: `streams` requests start together, all run to `max_tokens`, greedy, with no end token."""

    streams: int
    waves: int
    prompt_characters: int
    max_tokens: int
    seed: int
    coalesce_ms: int | None = None  # None: the server's default

    def prompts(self, wave: int) -> list[str]:
        """Texts of equal length that share no prefix, the same in every process."""
        source = random.Random(f"{self.seed}/{wave}")
        return [_words(source, self.prompt_characters) for _ in range(self.streams)]

    @property
    def tokens(self) -> int:
        """Tokens that the whole trial delivers."""
        return self.streams * self.waves * self.max_tokens


def _words(source: random.Random, characters: int) -> str:
    letters = "".join(source.choices("etaoinshrdlu ", k=characters - 1))
    return source.choice("ABCDEFGHIJKLMNOPRSTW") + letters


@dataclass
class Measurement:
    """Times of one trial as seen by whoever consumed its tokens."""

    seconds: float  # from the start to the last token, summed over waves
    tokens: int
    prompt_tokens: int
    ttft_ms: list[float]  # one a request
    gap_ms: list[float]  # between deliveries to the same request; a delivery may hold several tokens
    tpot_ms: list[float]  # one a request: (last - first) / (tokens - 1)
    deliveries: int
    outputs: list[list[int]]  # token ids, only where asked for

    @classmethod
    def of(cls, waves: Sequence[tuple[float, float, list["Reception"]]]) -> "Measurement":
        """Sum up waves of (start, end, receptions), in seconds of one clock."""
        receptions = [(start, one) for start, _, ones in waves for one in ones]
        gaps = [b - a for _, one in receptions for a, b in zip(one.times, one.times[1:], strict=False)]
        spans = [(one.times[-1] - one.times[0]) / max(1, one.tokens - 1) for _, one in receptions]
        return cls(
            seconds=sum(end - start for start, end, _ in waves),
            tokens=sum(one.tokens for _, one in receptions),
            prompt_tokens=sum(one.prompt_tokens for _, one in receptions),
            ttft_ms=[1e3 * (one.times[0] - start) for start, one in receptions],
            gap_ms=[1e3 * gap for gap in gaps],
            tpot_ms=[1e3 * span for span in spans],
            deliveries=sum(len(one.times) for _, one in receptions),
            outputs=[one.ids for _, one in receptions if one.ids],
        )


@dataclass
class Reception:
    """One request's tokens as they came in."""

    times: list[float]
    tokens: int
    prompt_tokens: int
    ids: list[int]


def quantile(values: Sequence[float], q: float) -> float:
    """The value at rank q of 1, the lower one between two; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def answer_commands(commands: dict[str, Callable[..., Any]]) -> None:
    """Serve `[name, arguments]` lines on stdin with one line of JSON each on stdout, until stdin ends."""
    for line in sys.stdin:
        name, arguments = json.loads(line)
        result = commands[name](**arguments)
        print(json.dumps(asdict(result) if hasattr(result, "__dataclass_fields__") else result), flush=True)
