"""Measures the server against the floor, in pairs, and writes benchmarks/results.

    python benchmarks/run.py [--pairs 3] [--models tiny,smollm2] [--streams 1,4,16,64] [--publish]
    python benchmarks/run.py --mixes | --trace    # mixes.py or arrival_trace.py instead, with their own options

Floor, server and load generator are three processes. A round runs each variant of the server and, beside it, the floor
on the same requests; every figure is the median over the rounds of (server / floor), so that what else the machine does
falls on both. `--publish` writes docs/performance.md as well.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import arrival_trace
import mixes
import report
from processes import RESULTS
from stage import SERVE, Stage, Variant, environment, model_folder, stage
from workload import Trial

DEFAULT, AT_ONCE = "default", "coalesce_ms 0"
# A real model's step takes longer than coalescing: both variants are the same there.
VARIANTS = {
    "tiny": {DEFAULT: Variant(), AT_ONCE: Variant(changes={"coalesce_ms": 0})},
    "smollm2": {DEFAULT: Variant()},
}
# Enough tokens that CPU seconds, counted in ticks of 10 ms, are exact to a few per cent.
TINY_WAVES = {1: 24, 4: 12, 16: 8, 64: 3}
LATE_STREAMS, LATE_ARRIVALS = 4, 20
ESTIMATED_SECONDS = {"tiny": 3.0, "smollm2": 4.0}  # of one trial, on two idle cores


def trials(model: str, streams: list[int]) -> list[Trial]:
    """The trials of a model: seconds each, on two cores."""
    if model == "tiny":
        return [Trial(n, TINY_WAVES.get(n, 3), 32, 64, seed=f"{n}") for n in streams]
    return [Trial(n, 1, 64, 16, seed=f"{n}") for n in streams if n <= 16]


def case(one: Stage, model: str, trial: Trial, pairs: int) -> list[dict[str, Any]]:
    """A row for each variant: all its rounds, and whether the server's tokens are the floor's."""
    equal = one.equal(trial)
    rounds = one.rounds(trial, VARIANTS[model], pairs)
    return [{"variant": name, "streams": trial.streams, "equal": equal, "rounds": rounds[name]} for name in rounds]


def late(one: Stage, pairs: int) -> list[dict[str, Any]]:
    """Rounds of arrivals at an idle model and beside running streams, for each variant."""
    rows = []
    for name, variant in VARIANTS["tiny"].items():
        tasks = [
            Trial(LATE_STREAMS, 1, 32, 64, seed=f"late/{turn}/{name}", **(variant.changes or {}))
            for turn in range(pairs)
        ]
        load = one.servers[DEFAULT].asked
        rounds = [load.ask("late", trial=asdict(task), arrivals=LATE_ARRIVALS) for task in tasks]
        rows.append({"variant": name, "streams": LATE_STREAMS, "rounds": rounds})
    return rows


def bench_model(model: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model."""
    with stage(model, folder, {DEFAULT: {}}, tuple(options.server.split())) as one:
        rows: list[dict[str, Any]] = []
        for trial in trials(model, [int(n) for n in options.streams.split(",")]):
            new = case(one, model, trial, options.pairs)
            print(report.progress(model, new), flush=True)
            rows += new
        arrivals = late(one, options.pairs) if model == "tiny" else []
        memory = {"floor_mib": one.floor.usage.peak_mib(), "server_mib": one.servers[DEFAULT].usage.peak_mib()}
        return {"model": model, "rows": rows, "late": arrivals, "memory": memory}


def estimated_seconds(options: argparse.Namespace) -> float:
    """Of the whole run, on two idle cores."""
    streams = [int(n) for n in options.streams.split(",")]
    return sum(
        15 + len(trials(model, streams)) * ESTIMATED_SECONDS[model] * (2 * len(VARIANTS[model]) * options.pairs + 1)
        for model in options.models.split(",")
    )


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="rounds of every case (default 3)")
    parser.add_argument("--models", default="tiny,smollm2", help="which models")
    parser.add_argument("--streams", default="1,4,16,64", help="streams at a time")
    parser.add_argument("--server", default=" ".join(SERVE), help="the server's command")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md and its plot")
    options = parser.parse_args()
    print(f"about {estimated_seconds(options) / 60:.1f} minutes on two idle cores", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        results = {
            "environment": environment(),
            "pairs": options.pairs,
            "models": [
                bench_model(name, model_folder(name, Path(scratch)), options) for name in options.models.split(",")
            ],
        }
    (RESULTS / "results.json").write_text(json.dumps(results, indent=1))
    print(report.text(results))
    report.plot(results).savefig(RESULTS / "performance.png", dpi=110)
    if options.publish:
        report.publish(results)


if __name__ == "__main__":
    others = {"--mixes": mixes.main, "--trace": arrival_trace.main}
    if chosen := [word for word in others if word in sys.argv]:
        sys.argv.remove(chosen[0])
        sys.exit(others[chosen[0]]())
    main()
