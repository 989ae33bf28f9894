"""What long prompts do to running streams: our engine against mlx-lm's BatchGenerator at its default settings.

    python benchmarks/fair_steps.py [--rounds 1] [--streams 8] [--prompts 4] [--length 3000] [--target-gap-ms MS]

In this process, on a random Llama (6 layers, 256 dimensions): streams run; then long prompts arrive together. Counted
are the gaps between two tokens of each running stream, from that arrival until the last long prompt has its first
token, and how long the long prompts waited for theirs. The floor gives prompts everything, so the last one waits least.
Both use the engine's BLAS, which is why mlx-lm is imported behind it.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.core.model import EngineSettings
from inferd_server.engine.engine import Engine
from inferd_server.engine.language import open_language_engine
from inferd_server.engine.upstream import load_model
from support import tiny_llama
from support.engine_room import LoadingFake

LAYERS, HIDDEN = 6, 256
SETTLING_STEPS = 30
STREAM_TOKENS = 4000
GREEDY = Sampling(temperature=0.0)

Insert = Callable[[Sequence[Sequence[int]], int], list[int]]
Step = Callable[[], Iterable[int]]


@dataclass(frozen=True)
class Reception:
    """Seconds: gaps of the running streams during prefill, and the long prompts' times to their first token."""

    gaps: list[float]
    first_tokens: list[float]

    @property
    def p99(self) -> float:
        """Of the gaps."""
        return sorted(self.gaps)[min(len(self.gaps) - 1, int(len(self.gaps) * 0.99))]

    def describe(self, name: str) -> str:
        """One line, in milliseconds."""
        gaps = f"gap p50 {1e3 * statistics.median(self.gaps):6.0f}  p99 {1e3 * self.p99:6.0f}"
        first = ", ".join(f"{1e3 * seconds:.0f}" for seconds in sorted(self.first_tokens))
        return f"{name:8} {gaps}  max {1e3 * max(self.gaps):6.0f} ms of {len(self.gaps):5}; first tokens {first} ms"


def prompt(length: int, seed: int) -> list[int]:
    """Token ids without a shared prefix."""
    return [7 + (13 * seed + 7 * i * i + i) % 250 for i in range(length)]


def measure(insert: Insert, step: Step, options: argparse.Namespace) -> Reception:
    """Run streams, let the long prompts arrive, and look until each has its first token."""
    running = insert([prompt(20, seed) for seed in range(options.streams)], STREAM_TOKENS)
    for _ in range(SETTLING_STEPS):
        step()
    arrived = time.perf_counter()
    last = dict.fromkeys(running, arrived)
    waiting = set(insert([prompt(options.length, 100 + seed) for seed in range(options.prompts)], 4))
    gaps, first_tokens = [], []
    while waiting:
        uids = list(step())
        now = time.perf_counter()
        for uid in uids:
            if uid in last:
                gaps.append(now - last[uid])
                last[uid] = now
            elif uid in waiting:
                waiting.remove(uid)
                first_tokens.append(now - arrived)
    return Reception(gaps, first_tokens)


def floor(model: Any, options: argparse.Namespace) -> Reception:
    """mlx-lm's own loop."""
    from mlx_lm.generate import BatchGenerator  # noqa: PLC0415 - behind the engine, which brings its BLAS

    generator = BatchGenerator(model)

    def insert(prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
        return list(generator.insert([list(ids) for ids in prompts], max_tokens=[tokens] * len(prompts)))

    try:
        return measure(insert, lambda: [response.uid for response in generator.next()[1]], options)
    finally:
        generator.close()


def ours(engine: Engine, options: argparse.Namespace) -> Reception:
    """The engine; what still runs is removed."""
    uids: list[int] = []

    def insert(prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
        new = [engine.insert(DecodeRequest(tuple(ids), GREEDY, tokens)) for ids in prompts]
        uids.extend(new)
        return new

    try:
        return measure(insert, lambda: [token.uid for token in engine.step().tokens], options)
    finally:
        for uid in uids:
            engine.remove(uid)


def main() -> None:
    """Measure in turns and print each round, and the median ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 1), ("streams", 8), ("prompts", 4), ("length", 3000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--target-gap-ms", type=float, help="unset: the engine's own")
    options = parser.parse_args()
    target = options.target_gap_ms / 1000 if options.target_gap_ms else None
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_llama.build(Path(folder) / "mid", layers=LAYERS, hidden=HIDDEN, context_length=8192)
        model, _ = load_model(path)
        engine = open_language_engine(EngineSettings("mid", path, target_gap_seconds=target), LoadingFake())
        better, slower = [], []
        for _ in range(options.rounds):
            plain, fair = floor(model, options), ours(engine, options)
            print(plain.describe("mlx-lm"), fair.describe("inferd"), sep="\n", flush=True)
            better.append(plain.p99 / fair.p99)
            slower.append(max(fair.first_tokens) / max(plain.first_tokens))
        engine.close()
    print(
        f"gap p99 {statistics.median(better):.1f} x better; last first token {statistics.median(slower):.2f} x as late"
    )


if __name__ == "__main__":
    main()
