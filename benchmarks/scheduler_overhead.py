"""What the scheduler alone costs: tokens/s through it against a bare loop, in one process and in pairs.

    python benchmarks/scheduler_overhead.py [--pairs 7] [--streams 1,16,64] [--tokens 200] [--layers 2] [--profile]

Rounds interleave a bare loop over mlx-lm's BatchGenerator (the floor), a bare loop over our engine, and the Scheduler
over the same engine with one reader task a stream, at the default coalescing and without any, in turning order. Every
figure is the median of the rounds' ratios to the floor: of tokens/s, and of CPU time, which swings less on shared
cores. `--profile` prints where the worker thread's own Python time goes.
"""

import argparse
import asyncio
import cProfile
import pstats
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.core.model import EngineSettings
from inferd_server.engine.device import end_thread
from inferd_server.engine.engine import Engine
from inferd_server.engine.language import open_language_engine
from inferd_server.scheduler import Scheduler
from support import tiny_llama

ROWS = 64
PROMPT_TOKENS = 32


class NoLoading:
    """A Loading that nobody watches."""

    abandoned = False

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        pass


def prompts(streams: int) -> list[tuple[int, ...]]:
    """Prompts of equal length without a shared prefix."""
    return [tuple(7 + (13 * i + 7 * j * j + j) % 250 for j in range(PROMPT_TOKENS)) for i in range(streams)]


def floor(model: Any, streams: int, tokens: int) -> None:
    """The bare BatchGenerator."""
    generator = BatchGenerator(model, completion_batch_size=ROWS)
    running = len(generator.insert([list(p) for p in prompts(streams)], max_tokens=[tokens] * streams))
    while running:
        _, responses = generator.next()
        running -= sum(response.finish_reason is not None for response in responses)
    generator.close()


def bare_engine(engine: Engine, streams: int, tokens: int) -> None:
    """Our engine without a scheduler."""
    for prompt in prompts(streams):
        engine.insert(DecodeRequest(prompt, Sampling(0.0), tokens))
    while engine.has_work:
        engine.step()


async def through_scheduler(scheduler: Scheduler, streams: int, tokens: int, coalesce_seconds: float) -> None:
    """The scheduler with a reader task for each stream."""

    async def read(prompt: tuple[int, ...]) -> int:
        request, got = DecodeRequest(prompt, Sampling(0.0), tokens), 0
        async with aclosing(scheduler.submit(request, coalesce_seconds=coalesce_seconds)) as stream:
            await stream.admitted()
            async for some in stream:
                got += len(some)
        return got

    counts = await asyncio.gather(*map(read, prompts(streams)))
    assert counts == [tokens] * streams


@dataclass
class Contestant:
    """One way to decode the same tokens, and its (wall, CPU) seconds, one pair a round."""

    name: str
    run: Callable[[], Awaitable[None]]
    seconds: list[tuple[float, float]] = field(default_factory=list)

    async def measure(self) -> None:
        """Run once."""
        wall, cpu = time.perf_counter(), time.process_time()
        await self.run()
        self.seconds.append((time.perf_counter() - wall, time.process_time() - cpu))

    def against(self, base: "Contestant") -> str:
        """Medians of base ÷ self for wall time (so of tokens/s), and of self ÷ base for CPU time."""
        pairs = list(zip(base.seconds, self.seconds, strict=True))[1:]  # the first round warms up
        speed = sorted(theirs[0] / ours[0] for theirs, ours in pairs)
        cpu = statistics.median(ours[1] / theirs[1] for theirs, ours in pairs)
        return f"{self.name}: {statistics.median(speed):.2f} ({speed[0]:.2f}-{speed[-1]:.2f}), CPU {cpu:.2f}"


async def compare(folder: Path, streams: int, tokens: int, pairs: int) -> None:
    """Print the floor's tokens/s and each contestant's ratios to it."""
    settings = EngineSettings("tiny", folder, max_batch_size=ROWS)
    model, _ = load_model(folder)
    engine = open_language_engine(settings, NoLoading())
    scheduler = await Scheduler.open(
        settings, NoLoading(), open_language_engine, lambda error: None, end_thread=end_thread
    )

    async def run_floor() -> None:
        floor(model, streams, tokens)

    async def run_engine() -> None:
        bare_engine(engine, streams, tokens)

    base = Contestant("floor", run_floor)
    others = [
        Contestant("engine", run_engine),
        Contestant("10 ms", partial(through_scheduler, scheduler, streams, tokens, 0.010)),
        Contestant("0 ms", partial(through_scheduler, scheduler, streams, tokens, 0.0)),
    ]
    order = deque([base, *others])
    for _ in range(pairs + 1):
        for contestant in order:
            await contestant.measure()
        order.rotate()
    await scheduler.close()
    engine.close()
    speed = streams * tokens / statistics.median(wall for wall, _ in base.seconds[1:])
    print(f"{streams:3} streams, floor {speed:,.0f} tok/s | " + " | ".join(o.against(base) for o in others), flush=True)


async def profile(folder: Path, streams: int, tokens: int) -> None:
    """Print the worker thread's Python functions by their own time."""
    profiler = cProfile.Profile()

    def profiled(settings: EngineSettings, loading: Any) -> Engine:
        engine = open_language_engine(settings, loading)
        profiler.enable()
        return engine

    def end() -> None:
        profiler.disable()
        end_thread()

    settings = EngineSettings("tiny", folder, max_batch_size=ROWS)
    scheduler = await Scheduler.open(settings, NoLoading(), profiled, lambda error: None, end_thread=end)
    await through_scheduler(scheduler, streams, tokens, 0.010)
    await scheduler.close()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


def main(run: Callable[[Any], Any] = asyncio.run) -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = tiny_llama.build(Path(scratch) / "tiny", layers=arguments.layers)
        for streams in map(int, arguments.streams.split(",")):
            if arguments.profile:
                run(profile(folder, streams, arguments.tokens))
            else:
                run(compare(folder, streams, arguments.tokens, arguments.pairs))
    assert threading.active_count() == 1, "a thread was left behind"


if __name__ == "__main__":
    main()
