"""Measures the server against the floor, in pairs, and writes benchmarks/results.

    python benchmarks/run.py [--pairs 5] [--models tiny,smollm2] [--streams 1,4,16,64] [--publish]

Floor, server and load generator are three processes. A round runs the floor and each variant of the server on the same
requests, one after the other and in turning order; every figure is the median over the rounds of (server / floor), so
that what else the machine does falls on both. `--publish` writes docs/performance.md as well.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report
from processes import RESULTS, ROOT, Child, Usage, preload_openblas, server
from workload import Trial, quantile

VARIANTS: dict[str, int | None] = {"default": None, "coalesce_ms 0": 0}
# Enough tokens that CPU seconds, counted in ticks of 10 ms, are exact to a few per cent.
TINY_WAVES = {1: 40, 4: 20, 16: 12, 64: 5}
LATE_STREAMS, LATE_ARRIVALS = 4, 20


def summary(measured: dict[str, Any], cpu_seconds: float) -> dict[str, float]:
    """The figures of one trial."""
    return {
        "tokens": measured["tokens"],
        "prompt_tokens": measured["prompt_tokens"],
        "tokens_per_s": measured["tokens"] / measured["seconds"],
        "cpu_s_per_1000_tokens": 1000 * cpu_seconds / measured["tokens"],
        "ttft_p50_ms": quantile(measured["ttft_ms"], 0.5),
        "ttft_p99_ms": quantile(measured["ttft_ms"], 0.99),
        "gap_p50_ms": quantile(measured["gap_ms"], 0.5),
        "gap_p99_ms": quantile(measured["gap_ms"], 0.99),
        "tpot_p50_ms": quantile(measured["tpot_ms"], 0.5),
        "tokens_per_delivery": measured["tokens"] / measured["deliveries"],
    }


class Bench:
    """One model: its floor, its server, its load."""

    def __init__(self, floor: Child, load: Child, server_usage: Usage) -> None:
        self.floor, self.load = floor, load
        self.floor_usage, self.server_usage = Usage(floor.process.pid), server_usage

    def measure(self, child: Child, usage: Usage, trial: Trial) -> dict[str, float]:
        """One trial with the CPU time that the measured process (not the load generator) took for it."""
        before = usage.cpu_seconds()
        measured = child.ask("run", trial=asdict(trial))
        return summary(measured, usage.cpu_seconds() - before)

    def case(self, trial: Trial, pairs: int) -> list[dict[str, Any]]:
        """A row for each variant: all its rounds, and whether the server's tokens are the floor's."""
        one = replace(trial, waves=1)
        expected = self.floor.ask("run", trial=asdict(one), with_ids=True)["outputs"]
        actual = self.load.ask("run", trial=asdict(one), with_ids=True)["outputs"]
        equal = sum(a == b for a, b in zip(expected, actual, strict=True)) / len(expected)
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
        for number in range(pairs):
            seeded = replace(trial, seed=trial.seed + number)
            measured = self._round(seeded, turn=number)
            for name in VARIANTS:
                rounds[name].append({"floor": measured["floor"], "server": measured[name]})
        return [
            {"variant": name, "streams": trial.streams, "equal": equal, "rounds": rounds[name]} for name in VARIANTS
        ]

    def _round(self, trial: Trial, turn: int) -> dict[str, dict[str, float]]:
        names = ["floor", *VARIANTS]
        turn %= len(names)
        measured = {}
        for name in names[turn:] + names[:turn]:
            if name == "floor":
                measured[name] = self.measure(self.floor, self.floor_usage, trial)
            else:
                measured[name] = self.measure(self.load, self.server_usage, replace(trial, coalesce_ms=VARIANTS[name]))
        return measured

    def late(self, trial: Trial, pairs: int) -> list[dict[str, Any]]:
        """Rounds of arrivals at an idle model and beside running streams, for each variant."""
        rows = []
        for name, coalesce_ms in VARIANTS.items():
            task = asdict(replace(trial, coalesce_ms=coalesce_ms))
            rounds = [self.load.ask("late", trial=task, arrivals=LATE_ARRIVALS) for _ in range(pairs)]
            rows.append({"variant": name, "streams": trial.streams, "rounds": rounds})
        return rows


def trials(model: str, streams: list[int]) -> list[Trial]:
    """The trials of a model: seconds each, on two cores."""
    if model == "tiny":
        return [Trial(n, TINY_WAVES.get(n, 5), 32, 64, seed=100) for n in streams]
    return [Trial(n, 2 if n == 1 else 1, 64, 32, seed=100) for n in streams if n <= 16]


def bench_model(model: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model."""
    streams = [int(n) for n in options.streams.split(",")]
    if model == "tiny":  # its matrices are too small to share: a second thread of BLAS only spins, on both sides
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    else:
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
    with ExitStack() as stack:
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "inferd.yaml"
        config.write_text(
            "manager: {memory_budget_gb: 8}\n"
            f"models:\n- {{name: {model}, path: {json.dumps(str(folder))}, preload: true, max_batch_size: 64}}\n"
        )
        command = [*options.server.split(), "--config", str(config), "--listen", "127.0.0.1:0"]
        running = stack.enter_context(server(command, RESULTS / f"server-{model}.log"))
        floor = Child("benchmarks/floor.py", str(folder))
        load = Child("benchmarks/client_load.py", running.address, model)
        stack.callback(floor.close)
        stack.callback(load.close)
        bench = Bench(floor, load, Usage(running.pid))
        rows: list[dict[str, Any]] = []
        for trial in trials(model, streams):
            rows += bench.case(trial, options.pairs)
            print(report.progress(model, rows[-len(VARIANTS) :]), flush=True)
        late = bench.late(Trial(LATE_STREAMS, 1, 32, 64, seed=7), options.pairs) if model == "tiny" else []
        memory = {"floor_mib": bench.floor_usage.peak_mib(), "server_mib": bench.server_usage.peak_mib()}
        return {"model": model, "rows": rows, "late": late, "memory": memory}


def model_folder(model: str, scratch: Path) -> Path:
    """The tiny model is made anew; SmolLM2 is the demo's (prepared first, if need be)."""
    if model == "tiny":
        sys.path.insert(0, str(ROOT / "tests"))
        from support import tiny_llama  # noqa: PLC0415 - found only now that tests/ is on the path

        return tiny_llama.build(scratch / "tiny")
    os.environ.setdefault("INFERD_DEMO_DIR", str(ROOT / ".demo"))
    prepared = subprocess.run([ROOT / ".venv/bin/inferd", "demo-model"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(prepared.stdout.splitlines()[-1])


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {
        "commit": commit.strip(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "grpcio")},
        "blas": preload_openblas(),
        "load_before": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="rounds of every case (default 5)")
    parser.add_argument("--models", default="tiny,smollm2", help="which models")
    parser.add_argument("--streams", default="1,4,16,64", help="streams at a time")
    parser.add_argument("--server", default=f"{ROOT}/.venv/bin/inferd serve", help="the server's command")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md and its plot")
    options = parser.parse_args()
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
    report.plot(results, RESULTS / "performance.png")
    if options.publish:
        report.publish(results, ROOT / "docs")


if __name__ == "__main__":
    main()
