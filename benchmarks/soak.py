"""Random traffic for minutes: five models in the room of three, and all that clients, operators and probes can do.

    python benchmarks/soak.py [--minutes 10] [--callers 16] [--seed 0] [--publish]

Exit code 1 if a call hangs or ends in a way that nobody provoked, an answer is wrong, the ledger is ever inexact,
anything runs or waits at the end, memory, files or threads grow, answers become slower, or the server's log or end
tells of trouble.
Writes benchmarks/results/soak.json, and with --publish a section of docs/performance.md.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import page
import psutil
from processes import RESULTS, ROOT, Running, server
from soak_figures import Drift, Slope, plot
from soak_traffic import EMBEDDER, EYES, STEADY, TEXTS, Traffic
from stage import environment
from workload import quantile

from inferd.v1 import model_service_pb2 as mod
from inferd.v1.model_service_pb2_grpc import ModelServiceStub

sys.path.insert(0, str(ROOT / "tests"))
GIB = 2**30
WARM_UP = 0.2
"""Of the whole time: allocators, caches and imports fill up."""
RELOAD_EVERY_S = 15.0
SETTLE_S = 60.0
MAX_SLOPE_MIB_PER_HOUR, MAX_GROWTH_MIB = 60.0, 24.0
"""Both must be exceeded, the slope by more than two standard errors."""
JUDGED_S = 240.0
"""A shorter run says nothing about memory: caches fill up, and lines through noise are steep."""
MAX_SLOWDOWN, SLOWDOWN_SLACK_MS = 1.5, 20.0
MIN_COUNT = 100
"""Of times, to say anything about them."""
MORE_FILES, MORE_THREADS = 16, 16
TROUBLE = re.compile(r"Traceback|never retrieved|was destroyed|\[(error|critical)")


class Config:
    """The server's file; each reload finds another alias and another default in it."""

    def __init__(self, folder: Path) -> None:
        from support import tiny_embedder, tiny_llama, tiny_vlm  # noqa: PLC0415 - found only now on the path

        for number, name in enumerate(TEXTS):
            template = tiny_llama.TOOLS_TEMPLATE if number == 0 else tiny_llama.CHAT_TEMPLATE
            tiny_llama.build(folder / name, hidden=128, seed=number, chat_template=template)
        tiny_llama.build(folder / STEADY, hidden=128, seed=9)
        tiny_vlm.build(folder / EYES)
        tiny_embedder.build(folder / EMBEDDER)
        self.image = tiny_vlm.encoded(tiny_vlm.image("red"))
        self.path = folder / "inferd.yaml"
        self._folder, self._round = folder, 0
        self.change()

    def change(self) -> None:
        """Write it anew."""
        self._round += 1
        entries: list[dict[str, Any]] = [
            {"name": name, "path": str(self._folder / name), "estimated_memory_gb": 1}
            for name in (*TEXTS, EYES, EMBEDDER)
        ]
        entries.append(
            {**entries[0], "name": STEADY, "path": str(self._folder / STEADY), "pinned": True, "preload": True}
        )
        entries[0]["aliases"] = [f"alias-{self._round}"]
        entries[1]["defaults"] = {"max_tokens": 100 + self._round % 2}
        manager = {
            "memory_budget_gb": 4.5,
            "min_residency_s": 0.2,
            "cache_memory_mb": 16,  # full within the warm-up
            "drain_busy_after_s": 1,
            "contention_policy": {"strategy": "wait_then_preempt", "wait_timeout_s": 60, "preempt_after_s": 1},
            "request_overrides": ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"],
        }
        self.path.write_text(json.dumps({"manager": manager, "models": entries}))


class Soak:
    """One server, its traffic, and what is measured of it."""

    def __init__(self, running: Running, config: Config, options: argparse.Namespace) -> None:
        self._process = psutil.Process(running.pid)
        self._config = config
        self._options = options
        self.begin = time.monotonic()
        self.end = self.begin + 60 * options.minutes
        self.warm = self.begin + WARM_UP * (self.end - self.begin)
        self.resident_mib: list[tuple[float, float]] = []
        self.files: list[tuple[float, float]] = []
        self.threads: list[tuple[float, float]] = []
        self.traffic = Traffic(running.address, self.end, config.image, options.seed)
        self._address = running.address

    async def run(self) -> None:
        """All of the traffic, then the checks of the end."""
        await self.traffic.run(self._options.callers, self._measure)
        async with grpc.aio.insecure_channel(self._address) as channel:
            await self._settle(ModelServiceStub(channel))

    async def _measure(self) -> None:
        """Memory and the ledger every second; a changed configuration now and then."""
        next_reload = self.begin + RELOAD_EVERY_S
        async with grpc.aio.insecure_channel(self._address) as channel:
            models: Any = ModelServiceStub(channel)
            while (now := time.monotonic()) < self.end:
                self._check_ledger(await models.ListModels(mod.ListModelsRequest(), timeout=60))
                with self._process.oneshot():
                    self.resident_mib.append((now, self._process.memory_info().rss / 2**20))
                    self.threads.append((now, self._process.num_threads()))
                    self.files.append((now, self._process.num_fds()))
                if now >= next_reload:
                    next_reload += RELOAD_EVERY_S
                    self._config.change()
                    self._process.send_signal(signal.SIGHUP)
                await asyncio.sleep(1)

    def _check_ledger(self, listed: mod.ListModelsResponse) -> None:
        charged = sum(model.memory.charged_bytes for model in listed.models)
        if listed.memory.used_bytes != charged or charged > listed.memory.limit_bytes:
            self.traffic.seen.faults.append(f"the ledger: {charged} charged, {listed.memory}")

    async def _settle(self, models: Any) -> None:
        """Nothing runs, waits or is on its way any more; all unloaded, nothing is charged."""
        moving = (mod.MODEL_STATE_LOADED, mod.MODEL_STATE_UNLOADED, mod.MODEL_STATE_FAILED)
        end = time.monotonic() + SETTLE_S
        while True:
            found = (await models.ListModels(mod.ListModelsRequest())).models
            busy = [m for m in found if m.running_requests or m.waiting_requests or m.state not in moving]
            if not busy:
                break
            if time.monotonic() > end:
                self.traffic.seen.faults.append(f"not idle {SETTLE_S:.0f} s after the last caller left: {busy}")
                return
            await asyncio.sleep(0.1)
        for model in found:
            await models.UnloadModel(mod.UnloadModelRequest(name=model.name, mode=mod.UNLOAD_MODE_DRAIN))
        memory = (await models.ListModels(mod.ListModelsRequest())).memory
        if memory.used_bytes:
            self.traffic.seen.faults.append(f"bytes that nobody has: {memory}")

    def result(self) -> dict[str, Any]:
        """The figures, and among the faults those that they show."""
        seen, faults = self.traffic.seen, list(self.traffic.seen.faults)
        memory = Slope.of([point for point in self.resident_mib if point[0] >= self.warm])
        first = Drift.of(seen.first, self.warm, self.end)
        gaps = Drift.of(seen.gaps, self.warm, self.end)
        certain = memory.per_hour - 2 * memory.error_per_hour
        is_judged = self.end - self.warm >= JUDGED_S
        if is_judged and certain > MAX_SLOPE_MIB_PER_HOUR and memory.in_all > MAX_GROWTH_MIB:
            faults.append(f"memory grows by {memory.per_hour:.0f} MiB an hour")
        for name, drift in (("first tokens", first), ("tokens", gaps)):
            if drift.count >= MIN_COUNT and drift.is_slower(MAX_SLOWDOWN, SLOWDOWN_SLACK_MS):
                faults.append(f"{name} become slower: {drift}")
        for name, points, more in (("files", self.files, MORE_FILES), ("threads", self.threads, MORE_THREADS)):
            thirds = [value for when, value in points if when >= self.warm]
            third = max(1, len(thirds) // 3)
            if max(thirds[-third:], default=0) > max(thirds[:third], default=0) + more:
                faults.append(f"{name} grow: {thirds[:1]} to {thirds[-1:]}")
        probes = [1e3 * seconds for _, seconds in seen.probes]
        return {
            "minutes": self._options.minutes,
            "callers": self._options.callers,
            "calls": sum(seen.ends.values()),
            "ends": dict(sorted(seen.ends.items())),
            "resident_mib": [self.resident_mib[0][1], self.resident_mib[-1][1]],
            "memory": asdict(memory),
            "first_token_ms": asdict(first),
            "inter_token_ms": asdict(gaps),
            "probe_ms": {"p50": quantile(probes, 0.5), "p99": quantile(probes, 0.99), "max": max(probes, default=0.0)},
            "files": [self.files[0][1], self.files[-1][1]],
            "threads": [self.threads[0][1], self.threads[-1][1]],
            "faults": faults,
        }


def report(result: dict[str, Any], markdown: bool = False) -> str:
    """The figures as text."""
    memory, first, gaps, probe = (result[key] for key in ("memory", "first_token_ms", "inter_token_ms", "probe_ms"))
    lines = [
        ["resident memory", f"{result['resident_mib'][0]:.0f} → {result['resident_mib'][1]:.0f} MiB"],
        ["memory slope", f"{memory['per_hour']:+.1f} ± {memory['error_per_hour']:.1f} MiB/h"],
        ["files, threads", " and ".join(f"{a:.0f} → {b:.0f}" for a, b in (result["files"], result["threads"]))],
    ]
    for name, drift in (("first token", first), ("between tokens", gaps)):
        for rank in ("p50", "p95"):
            lines.append([f"{name}, {rank}, first and last third", "{:.1f} → {:.1f} ms".format(*drift[rank])])
    lines.append(["readiness probe, p50 / p99 / most", " / ".join(f"{value:.1f}" for value in probe.values()) + " ms"])
    reasons: Counter[str] = Counter()
    for end, count in result["ends"].items():
        reasons[end.rpartition(" ")[2]] += count
    lines += [[f"calls that ended {reason}", f"{count:,}"] for reason, count in reasons.most_common()]
    lines.append(["faults", str(len(result["faults"]))])
    return page.table(("figure", "value"), lines, markdown)


def main() -> int:
    """Exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / "server-soak.log"
    facts = environment()
    with tempfile.TemporaryDirectory() as scratch:
        config = Config(Path(scratch))
        command = [f"{ROOT}/.venv/bin/inferd", "serve", "--config", str(config.path), "--listen", "127.0.0.1:0"]
        with server(command, log) as running:

            async def run() -> Soak:
                soak = Soak(running, config, options)
                await soak.run()
                return soak

            soak = asyncio.run(run())
    result = {"environment": facts, **soak.result()}
    if running.exit_code != 0:
        result["faults"].append(f"the server ended with code {running.exit_code}")
    result["faults"] += [f"log: {line}" for line in log.read_text().splitlines() if TROUBLE.search(line)]
    (RESULTS / "soak.json").write_text(json.dumps(result, indent=1))
    for what, count in result["ends"].items():
        print(f"{count:8d}  {what}")
    print(report(result))
    print("\n".join(["faults:", *result["faults"][:20]]) if result["faults"] else "no faults")
    if options.publish:
        how = f"{options.minutes:g} minutes, {options.callers} callers, {result['calls']:,} calls. {page.where(facts)}"
        body = f"{report(result, markdown=True)}\n\n{how}"
        figure = plot(soak.resident_mib, soak.traffic.seen.first, soak.begin, soak.end)
        page.publish("soak", body, figure, "Memory and time to the first token over the minutes of the soak")
    return bool(result["faults"])


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
