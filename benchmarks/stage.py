"""A model on stage: its floor, its servers with the load on each, and rounds that measure them in pairs."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from processes import RESULTS, ROOT, Child, Running, Usage, preload_openblas, server
from workload import Trial, quantile

SERVE = (f"{ROOT}/.venv/bin/inferd", "serve")
Rounds = list[dict[str, dict[str, float]]]


def summary(measured: dict[str, Any], cpu_seconds: float) -> dict[str, float]:
    """The figures of one trial."""
    return {
        "tokens": measured["tokens"],
        "prompt_tokens": measured["prompt_tokens"],
        "cached_tokens": measured["cached_tokens"],
        "tokens_per_s": measured["tokens"] / measured["seconds"],
        "cpu_s_per_1000_tokens": 1000 * cpu_seconds / measured["tokens"],
        "ttft_p50_ms": quantile(measured["ttft_ms"], 0.5),
        "ttft_p99_ms": quantile(measured["ttft_ms"], 0.99),
        "gap_p50_ms": quantile(measured["gap_ms"], 0.5),
        "gap_p99_ms": quantile(measured["gap_ms"], 0.99),
        "long_ttft_ms": quantile(measured["long_ttft_ms"], 0.5),
        "tokens_per_delivery": measured["tokens"] / measured["deliveries"],
    }


@dataclass(frozen=True)
class Side:
    """Something that serves tokens: who asks it, and the process that works."""

    asked: Child
    usage: Usage

    def measure(self, trial: Trial) -> dict[str, float]:
        """One trial with the CPU time that the measured process (not the load generator) took for it."""
        before = self.usage.cpu_seconds()
        measured = self.asked.ask("run", trial=asdict(trial))
        return summary(measured, self.usage.cpu_seconds() - before)

    def outputs(self, trial: Trial) -> list[list[int]]:
        """Token ids of a trial."""
        return self.asked.ask("run", trial=asdict(trial), with_ids=True)["outputs"]


@dataclass(frozen=True)
class Variant:
    """One way of asking for a trial: which server, and what else than the trial says."""

    server: str = "default"
    changes: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Stage:
    """One model: its floor and its servers by name."""

    floor: Side
    servers: dict[str, Side]

    def equal(self, trial: Trial, server_name: str = "default") -> float:
        """Share of a trial's outputs (of two waves at most) that are the floor's, token for token. Warms up, too."""
        trial = replace(trial, seed=f"{trial.seed}/equal", waves=min(2, trial.waves), long_prompts=0)
        expected, actual = self.floor.outputs(trial), self.servers[server_name].outputs(trial)
        return sum(a == b for a, b in zip(expected, actual, strict=True)) / len(expected)

    def warm(self, trial: Trial, variant: Variant) -> None:
        """One short wave, so that what a server does once (compile a schema, say) is no part of a round."""
        short = replace(trial, seed=f"{trial.seed}/warm/{variant.server}", waves=1, long_prompts=0)
        self.servers[variant.server].measure(replace(short, **(variant.changes or {})))

    def rounds(self, trial: Trial, variants: Mapping[str, Variant], count: int) -> dict[str, Rounds]:
        """By variant: `count` times the floor and the server on the same prompts, in turning order.

        No two pairs have a prompt in common, so that none finds another's in the prefix cache: the floor runs once for
        each variant, not once a round. Raises RuntimeError if a prompt was found all the same.
        """
        measured: dict[str, Rounds] = {name: [] for name in variants}
        names = list(variants)
        for turn in range(count):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                seeded = replace(trial, seed=f"{trial.seed}/{turn}/{name}")
                measured[name].append(self._pair(seeded, variants[name], floor_first=turn % 2 == 0))
        return measured

    def _pair(self, trial: Trial, variant: Variant, floor_first: bool) -> dict[str, dict[str, float]]:
        pair = {}
        for side in ("floor", "server") if floor_first else ("server", "floor"):
            if side == "floor":
                pair[side] = self.floor.measure(trial)
            else:
                pair[side] = self.servers[variant.server].measure(replace(trial, **(variant.changes or {})))
        if pair["server"]["cached_tokens"] and not trial.shared_characters:
            raise RuntimeError(f"prompts that share nothing were found in the prefix cache: {trial}")
        return pair


@contextmanager
def stage(
    model: str,
    folder: Path,
    managers: Mapping[str, Mapping[str, Any]],
    command: tuple[str, ...] = SERVE,
) -> Iterator[Stage]:
    """Processes for a model: a floor, and a server for each of `managers` (keys of the section `manager`)."""
    set_threads(model)
    with ExitStack() as stack:
        servers = {}
        for name, manager in managers.items():
            entry = {"max_batch_size": 64}
            running = stack.enter_context(serve(model, folder, entry, manager, f"{model}-{name}", command))
            load = Child("benchmarks/client_load.py", running.address, model)
            stack.callback(load.close)
            servers[name] = Side(load, Usage(running.pid))
        floor = Child("benchmarks/floor.py", str(folder))
        stack.callback(floor.close)
        yield Stage(Side(floor, Usage(floor.process.pid)), servers)


@contextmanager
def serve(
    model: str,
    folder: Path,
    entry: Mapping[str, Any],
    manager: Mapping[str, Any],
    log: str,
    command: tuple[str, ...] = SERVE,
) -> Iterator[Running]:
    """A server of one preloaded model. `entry` and `manager`: keys of the configuration."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "inferd.yaml"
        models = [{"name": model, "path": str(folder), "preload": True, **entry}]
        config.write_text(json.dumps({"manager": {"memory_budget_gb": 8, **manager}, "models": models}))
        full = [*command, "--config", str(config), "--listen", "127.0.0.1:0"]
        with server(full, RESULTS / f"server-{log.replace(' ', '-')}.log") as running:
            yield running


def set_threads(model: str) -> None:
    """For what is started from here on: a random model's matrices are too small to share among threads of BLAS."""
    if model == "smollm2":
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
    else:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def model_folder(model: str, scratch: Path) -> Path:
    """Random models are made anew; SmolLM2 is the demo's (prepared first, if need be)."""
    if model != "smollm2":
        sys.path.insert(0, str(ROOT / "tests"))
        from support import tiny_llama  # noqa: PLC0415 - found only now that tests/ is on the path

        sizes = {"tiny": {}, "mid": {"layers": 6, "hidden": 256}}
        return tiny_llama.build(scratch / model, **sizes[model])
    os.environ.setdefault("INFERD_DEMO_DIR", str(ROOT / ".demo"))
    prepared = subprocess.run([SERVE[0], "demo-model"], stdout=subprocess.PIPE, text=True, check=True)
    return next(Path(line) for line in prepared.stdout.splitlines() if line.endswith("smollm2"))


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
