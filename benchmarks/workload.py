"""What is measured, said once: the floor and the client build the same requests from it, in processes of their own."""

import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SETTLED_TOKENS = 8
"""Long prompts arrive when every stream has so many tokens."""


@dataclass(frozen=True)
class Asked:
    """One request: its prompt, and how many tokens it gets."""

    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Trial:
    """`streams` at a time, greedy, with no end token: `waves` times all together, or each request when one ends."""

    streams: int
    waves: int
    prompt_characters: int
    max_tokens: int
    seed: str
    coalesce_ms: int | None = None  # None: the server's default
    spread: float = 0.0  # sigma of lognormal lengths around both medians above; 0: all the same
    refill: bool = False  # a request that ends is followed by the next at once, waves * streams in all
    shared_characters: int = 0  # the beginning that all prompts of the trial have in common
    long_prompts: int = 0  # so many arrive together in each wave while its streams run
    long_characters: int = 0
    schema: str = ""  # JSON Schema of the output; the floor knows none

    def batches(self) -> list[list[Asked]]:
        """Requests that start when all before them ended, at most `streams` running; the same in every process."""
        waves = [self._wave(number) for number in range(self.waves)]
        return [[one for wave in waves for one in wave]] if self.refill else waves

    def _wave(self, number: int) -> list[Asked]:
        source = random.Random(f"{self.seed}/{number}")
        return [self._asked(source) for _ in range(self.streams)]

    def _asked(self, source: random.Random) -> Asked:
        shared = words(random.Random(f"{self.seed}/shared"), self.shared_characters) if self.shared_characters else ""
        own = words(source, lognormal(source, self.prompt_characters, self.spread))
        return Asked(shared + own, lognormal(source, self.max_tokens, self.spread))

    def long(self, batch: int) -> list[Asked]:
        """The long prompts that arrive within a batch."""
        source = random.Random(f"{self.seed}/{batch}/long")
        return [Asked(words(source, self.long_characters), 4) for _ in range(self.long_prompts)]


def words(source: random.Random, characters: int) -> str:
    """Text that shares no beginning with another one's."""
    letters = "".join(source.choices("etaoinshrdlu ", k=characters - 1))
    return source.choice("ABCDEFGHIJKLMNOPRSTW") + letters


def lognormal(source: random.Random, median: float, sigma: float, most: float = math.inf) -> int:
    """A length of at least 4 and at most `most` (unset: 16 medians)."""
    drawn = median * math.exp(source.gauss(0, sigma)) if sigma else median
    return round(min(max(drawn, 4), most, 16 * median))


@dataclass
class Reception:
    """One request's tokens as they came in; seconds of one clock."""

    start: float
    times: list[float] = field(default_factory=list)  # of the deliveries
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ids: list[int] = field(default_factory=list)  # only where asked for

    @property
    def ttft(self) -> float:
        """From the call to the first delivery."""
        return self.times[0] - self.start


@dataclass
class Batch:
    """What came of one batch: its streams, and the long prompts beside them."""

    start: float
    streams: list[Reception]
    long: list[Reception]

    @property
    def end(self) -> float:
        """The last token."""
        return max(one.times[-1] for one in (*self.streams, *self.long))

    def gaps(self) -> list[float]:
        """Between deliveries to the same stream; beside long prompts, only while one waits for its first token."""
        pairs = [pair for one in self.streams for pair in zip(one.times, one.times[1:], strict=False)]
        if self.long:
            first, last = min(one.start for one in self.long), max(one.times[0] for one in self.long)
            pairs = [(a, b) for a, b in pairs if b > first and a < last]
        return [b - a for a, b in pairs]


@dataclass
class Measurement:
    """Times of one trial as seen by whoever consumed its tokens."""

    seconds: float  # from the start to the last token, summed over batches
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: list[float]  # one a stream
    gap_ms: list[float]  # a delivery may hold several tokens
    long_ttft_ms: list[float]  # the last long prompt's, one a batch
    deliveries: int
    outputs: list[list[int]]  # token ids, only where asked for

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Measurement":
        """Sum up batches."""
        streams = [one for batch in batches for one in batch.streams]
        every = streams + [one for batch in batches for one in batch.long]
        return cls(
            seconds=sum(batch.end - batch.start for batch in batches),
            tokens=sum(one.tokens for one in every),
            prompt_tokens=sum(one.prompt_tokens for one in every),
            cached_tokens=sum(one.cached_tokens for one in every),
            ttft_ms=[1e3 * one.ttft for one in streams],
            gap_ms=[1e3 * gap for batch in batches for gap in batch.gaps()],
            long_ttft_ms=[1e3 * max(one.ttft for one in batch.long) for batch in batches if batch.long],
            deliveries=sum(len(one.times) for one in every),
            outputs=[one.ids for one in streams if one.ids],
        )


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
