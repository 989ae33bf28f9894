"""Replays bursty, heavy-tailed traffic at 0.5, 0.8 and 1.2 of capacity; writes benchmarks/results/trace.json.

    python benchmarks/arrival_trace.py [--seconds 25] [--loads 0.5,0.8,1.2] [--seed 0] [--publish]

Capacity is measured first: tokens/s while more callers than rows each send their next request as soon as one ends, with
lengths as in the trace. Then requests arrive whether or not earlier ones were answered (open loop); times count from
when a request was due, not from when it was sent. Arrivals are a Markov-modulated Poisson process: calm and bursts take
turns, each for an exponential time, and within a burst the rate is several times that of calm. Prompt and output
lengths are lognormal. `Traffic` has the parameters. At last the trace is stretched in time, so that the tokens that it
asks for in a second are exactly the stated share of the capacity.

Fails if a request was neither answered in full nor refused for a full queue or a wait that was over.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import page
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from matplotlib.figure import Figure
from page import table, where
from processes import RESULTS
from stage import environment, model_folder, serve, set_threads
from workload import Asked, lognormal, quantile, words

from inferd.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc, model_service_pb2
from inferd.v1.model_service_pb2_grpc import ModelServiceStub

MODEL = "tiny"
ANSWERED = "answered"
REFUSALS = {"QUEUE_FULL", "WAIT_TIMEOUT"}
HUNG_SECONDS = 30.0
WARMING_SECONDS = 1.0
PLOTTED = 200
"""Points of a curve."""


@dataclass(frozen=True)
class Traffic:
    """What arrives, and what is served in time."""

    calm_seconds: float = 2.0  # mean
    burst_seconds: float = 0.5  # mean
    burst_factor: float = 4.0  # rate within a burst ÷ rate in calm
    prompt_median: float = 64
    prompt_sigma: float = 1.0
    prompt_most: int = 1024
    output_median: float = 32
    output_sigma: float = 0.8
    output_most: int = 256
    rows: int = 32  # max_batch_size
    queue: int = 48  # max_queue
    ttft_limit_ms: float = 1000.0  # answered in time: first token
    token_limit_ms: float = 50.0  # and mean time of each later one

    def asked(self, source: random.Random) -> Asked:
        """One request; the tiny model's tokens are bytes."""
        prompt = words(source, lognormal(source, self.prompt_median, self.prompt_sigma, self.prompt_most))
        return Asked(prompt, lognormal(source, self.output_median, self.output_sigma, self.output_most))

    def arrivals(self, source: random.Random, rate: float, seconds: float) -> list[float]:
        """Times from 0 to `seconds`, on average `rate` a second."""
        cycle = self.calm_seconds + self.burst_seconds
        calm_rate = rate * cycle / (self.calm_seconds + self.burst_factor * self.burst_seconds)
        times: list[float] = []
        now, bursting = 0.0, False
        while now < seconds:
            end = now + source.expovariate(1 / (self.burst_seconds if bursting else self.calm_seconds))
            here = calm_rate * (self.burst_factor if bursting else 1)
            at = now
            while (at := at + source.expovariate(here)) < min(end, seconds):
                times.append(at)
            now, bursting = end, not bursting
        return times


@dataclass
class Outcome:
    """One request of a trace; seconds from the trace's start."""

    due: float
    asked: int
    late: float = 0.0  # how long after `due` it was sent
    end: str = "lost"  # ANSWERED or a reason
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between deliveries

    @property
    def ttft_ms(self) -> float:
        """From when it was due."""
        return 1e3 * (self.first - self.due)

    def is_in_time(self, traffic: Traffic) -> bool:
        """Whether it counts for the goodput."""
        each_ms = 1e3 * (self.last - self.first) / max(1, self.asked - 1)
        return self.end == ANSWERED and self.ttft_ms <= traffic.ttft_limit_ms and each_ms <= traffic.token_limit_ms


class Caller:
    """One channel to the server."""

    def __init__(self, address: str, traffic: Traffic) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.inference = inference_service_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = ModelServiceStub(self.channel)
        self.traffic = traffic

    async def capacity(self, seconds: float, seed: str) -> tuple[float, float]:
        """Tokens and requests a second with all rows taken."""
        source = random.Random(f"{seed}/capacity")
        start = time.perf_counter()
        end = start + WARMING_SECONDS + seconds
        delivered: list[tuple[float, int]] = []
        ended: list[float] = []

        async def call_on() -> None:
            while time.perf_counter() < end:
                before = 0
                async for message in self._call(self.traffic.asked(source)):
                    if message.WhichOneof("event") == "delta":
                        delivered.append((time.perf_counter(), message.delta.completion_tokens - before))
                        before = message.delta.completion_tokens
                ended.append(time.perf_counter())

        await asyncio.gather(*(call_on() for _ in range(self.traffic.rows + self.traffic.rows // 2)))
        begin = start + WARMING_SECONDS
        tokens = sum(count for at, count in delivered if begin <= at < end)
        return tokens / seconds, sum(begin <= at < end for at in ended) / seconds

    def _call(self, asked: Asked) -> Any:
        return self.inference.StreamGenerate(
            inference_service_pb2.StreamGenerateRequest(
                model=MODEL,
                prompt=asked.prompt,
                sampling=generation_pb2.SamplingOptions(temperature=0.0),
                stop=generation_pb2.StopOptions(max_tokens=asked.max_tokens, ignore_eos=True),
            ),
            timeout=HUNG_SECONDS,
        )

    async def replay(self, dues: Sequence[float], requests: Sequence[Asked]) -> list[Outcome]:
        """Send each request when it is due, whatever became of the others."""
        loop = asyncio.get_running_loop()
        start = time.perf_counter()
        tasks = []
        for due, asked in zip(dues, requests, strict=True):
            if (pause := start + due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            tasks.append(loop.create_task(self._receive(start, due, asked)))
        return list(await asyncio.gather(*tasks))

    async def _receive(self, start: float, due: float, asked: Asked) -> Outcome:
        one = Outcome(due, asked.max_tokens, late=time.perf_counter() - start - due)
        tokens = 0
        try:
            async for message in self._call(asked):
                event = message.WhichOneof("event")
                if event == "delta":
                    now = time.perf_counter() - start
                    if one.first:
                        one.gaps.append(now - one.last)
                    else:
                        one.first = now
                    one.last = now
                elif event == "finished":
                    tokens = message.finished.usage.completion_tokens
        except grpc.aio.AioRpcError as error:
            one.end = reason(error)
        else:
            one.end = ANSWERED if tokens == asked.max_tokens else f"{tokens} tokens of {asked.max_tokens}"
        return one

    async def busy(self) -> int:
        """Requests that the server still runs or lets wait."""
        model = (await self.models.GetModel(model_service_pb2.GetModelRequest(name=MODEL))).model
        return model.running_requests + model.waiting_requests


def reason(error: grpc.aio.AioRpcError) -> str:
    """The server's reason; the status code where it gave none."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info.reason
    return error.code().name


def figures(outcomes: list[Outcome], traffic: Traffic) -> dict[str, Any]:
    """What is reported of one load, and the values that are plotted."""
    answered = [one for one in outcomes if one.end == ANSWERED]
    seconds = max(one.due for one in outcomes)
    in_time = sum(one.is_in_time(traffic) for one in outcomes)
    gaps = [1e3 * gap for one in answered for gap in one.gaps]
    ttfts = sorted(one.ttft_ms for one in answered)
    return {
        "seconds": seconds,
        "arrived": len(outcomes),
        "ends": dict(Counter(one.end for one in outcomes)),
        "lost": sum(one.end != ANSWERED and one.end not in REFUSALS for one in outcomes),
        "in_time": in_time,
        "goodput_per_s": in_time / seconds,
        "arrived_per_s": len(outcomes) / seconds,
        "ttft_ms": {q: quantile(ttfts, float(q)) for q in ("0.5", "0.9", "0.99")},
        "gap_ms": {q: quantile(gaps, float(q)) for q in ("0.5", "0.9", "0.99")},
        "late_p99_ms": quantile([1e3 * one.late for one in outcomes], 0.99),
        "ttfts_ms": [round(value, 1) for value in ttfts],
        "due": [round(one.due, 2) for one in outcomes],
        "due_refused": [round(one.due, 2) for one in outcomes if one.end in REFUSALS],
    }


async def trace(address: str, options: argparse.Namespace) -> dict[str, Any]:
    """Capacity, then each load."""
    traffic = Traffic()
    caller = Caller(address, traffic)
    tokens_per_s, requests_per_s = await caller.capacity(options.capacity_seconds, f"{options.seed}")
    print(f"capacity: {tokens_per_s:,.0f} tokens/s, {requests_per_s:.1f} requests/s", flush=True)
    results: dict[str, Any] = {
        "traffic": asdict(traffic),
        "tokens_per_s": tokens_per_s,
        "requests_per_s": requests_per_s,
        "loads": [],
    }
    for load in (float(word) for word in options.loads.split(",")):
        source = random.Random(f"{options.seed}/{load}")
        dues = traffic.arrivals(source, load * requests_per_s, options.seconds)
        requests = [traffic.asked(source) for _ in dues]
        stretch = sum(one.max_tokens for one in requests) / (load * tokens_per_s * options.seconds)
        outcomes = await caller.replay([due * stretch for due in dues], requests)
        found = {"load": load, **figures(outcomes, traffic), "busy_afterwards": await caller.busy()}
        results["loads"].append(found)
        print("  ".join(cells(found)), flush=True)
    await caller.channel.close()
    return results


HEAD = (
    "load", "arrived", "answered", "refused", "lost", "in time", "goodput /s", "TTFT p50/p90/p99 ms",
    "gap p50/p90/p99 ms", "sent late p99 ms",
)  # fmt: skip


def cells(one: dict[str, Any]) -> list[str]:
    """One line of the table."""
    refused = ", ".join(f"{count} {end}" for end, count in sorted(one["ends"].items()) if end in REFUSALS)
    ttft, gap = (" / ".join(f"{one[name][q]:.0f}" for q in ("0.5", "0.9", "0.99")) for name in ("ttft_ms", "gap_ms"))
    return [
        f"{one['load']:g}",
        str(one["arrived"]),
        str(one["ends"].get(ANSWERED, 0)),
        refused or "0",
        str(one["lost"]),
        f"{one['in_time'] / one['arrived']:.0%}",
        f"{one['goodput_per_s']:.1f} of {one['arrived_per_s']:.1f}",
        ttft,
        gap,
        f"{one['late_p99_ms']:.1f}",
    ]


def text(results: dict[str, Any], markdown: bool = False) -> str:
    """Everything, for people."""
    capacity = f"Capacity: {results['tokens_per_s']:,.0f} tokens/s, {results['requests_per_s']:.1f} requests/s."
    traffic = ", ".join(f"{name} {value:g}" for name, value in results["traffic"].items())
    parts = [
        table(HEAD, [cells(one) for one in results["loads"]], markdown),
        f"{capacity} Traffic: {traffic}; seed {results['seed']}.",
        where(results["environment"]),
    ]
    return "\n\n".join(parts)


def plot(results: dict[str, Any]) -> Figure:
    """Times to the first token as shares of the answered; arrivals and refusals of the highest load by second."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    ttft, arrivals = figure.subplots(1, 2)
    for one in results["loads"]:
        shares = [number / PLOTTED for number in range(PLOTTED)]
        ttft.plot([quantile(one["ttfts_ms"], share) for share in shares], shares, label=f"{one['load']:g} of capacity")
    ttft.set(title="TTFT of answered requests", xlabel="ms", xscale="log", ylabel="share", ylim=(0, 1))
    ttft.legend(fontsize=8)
    ttft.grid(alpha=0.3)
    highest = max(results["loads"], key=lambda one: one["load"])
    bins = range(int(highest["seconds"]) + 2)
    arrivals.hist(highest["due"], bins=bins, histtype="step", label="arrived")
    arrivals.hist(highest["due_refused"], bins=bins, alpha=0.5, label="of these refused")
    arrivals.axhline(results["requests_per_s"], color="grey", linewidth=0.8, linestyle=":", label="capacity")
    arrivals.set(title=f"requests a second at {highest['load']:g} of capacity", xlabel="s")
    arrivals.legend(fontsize=8)
    return figure


def main() -> int:
    """Exit code 1 if a request was lost, or the server was not idle at the end of a load or did not end cleanly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25, help="length of each load's trace, before it is stretched")
    parser.add_argument("--capacity-seconds", type=float, default=8, help="how long to measure the capacity")
    parser.add_argument("--loads", default="0.5,0.8,1.2", help="shares of the capacity")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md and its plot")
    options = parser.parse_args()
    estimate = 12 + options.capacity_seconds + len(options.loads.split(",")) * (options.seconds + 3)
    print(f"about {estimate / 60:.1f} minutes", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"environment": environment(), "seed": options.seed}
    set_threads(MODEL)
    traffic = Traffic()
    with tempfile.TemporaryDirectory() as scratch:
        entry = {"max_batch_size": traffic.rows, "max_queue": traffic.queue}
        with serve(MODEL, model_folder(MODEL, Path(scratch)), entry, {}, "trace") as running:
            results |= asyncio.run(trace(running.address, options))
    (RESULTS / "trace.json").write_text(json.dumps(results, indent=1))
    print(text(results))
    if options.publish:
        page.publish("trace", text(results, markdown=True), plot(results), "Bursty traffic at three loads")
    faults = [one for one in results["loads"] if one["lost"] or one["busy_afterwards"]]
    if faults or running.exit_code:
        print(f"faults: {[one['ends'] for one in faults]}, the server ended with code {running.exit_code}")
    return bool(faults or running.exit_code)


if __name__ == "__main__":
    sys.exit(main())
