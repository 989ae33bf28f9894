"""Random traffic for minutes: three models of which two fit, callers that stream, leave, cancel and ask for nonsense.

    python benchmarks/soak.py [--minutes 10] [--callers 8] [--seed 0]

Fails if a call hangs or ends in a way that no caller provoked, if the budget is ever exceeded, if anything still runs
or waits at the end, if memory grew, or if the server does not end cleanly.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import grpc
from processes import RESULTS, ROOT, Usage, server

from inferd.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc, model_service_pb2
from inferd.v1.model_service_pb2_grpc import ModelServiceStub

MODELS = ("one", "two", "three")
CALL_LIMIT_S = 120.0
GROWTH_LIMIT_MIB = 96
# What a caller may meet: its own nonsense, its own leaving, and no room under `wait_then_fail`.
EXPECTED = {"OK", "INVALID_ARGUMENT", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "NOT_FOUND"}


class Soak:
    """The callers, the watcher and what they saw."""

    def __init__(self, address: str, usage: Usage, options: argparse.Namespace) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.inference = inference_service_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = ModelServiceStub(self.channel)
        self.usage, self.options = usage, options
        self.end = time.monotonic() + 60 * options.minutes
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.resident_mib: list[float] = []

    @classmethod
    async def run(cls, address: str, usage: Usage, options: argparse.Namespace) -> "Soak":
        """All callers until the time is over, then the checks of the end; the channel belongs to the running loop."""
        soak = cls(address, usage, options)
        await soak._run()
        return soak

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for number in range(self.options.callers):
                group.create_task(self._caller(random.Random(f"{self.options.seed}/{number}")))
        await self._settle()
        await self.channel.close()

    async def _caller(self, source: random.Random) -> None:
        calls = (self._unary, self._stream, self._leave, self._cancel, self._deadline, self._nonsense)
        while time.monotonic() < self.end:
            call = source.choice(calls)
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    await call(source)
                code = "OK"
            except grpc.aio.AioRpcError as error:
                code = error.code().name
                if code not in EXPECTED:
                    self.faults.append(f"{call.__name__}: {code} {error.details()}")
            except TimeoutError:
                code = "HUNG"
                self.faults.append(f"{call.__name__} hung for {CALL_LIMIT_S:.0f} s")
            self.seen[f"{call.__name__.strip('_')} {code}"] += 1

    def _request(self, source: random.Random) -> inference_service_pb2.StreamGenerateRequest:
        return inference_service_pb2.StreamGenerateRequest(
            request_id=f"soak-{source.getrandbits(64):x}",
            model=source.choice(MODELS),
            prompt="".join(source.choices("abcdefgh ", k=source.randint(1, 400))),
            sampling=generation_pb2.SamplingOptions(temperature=source.choice((0.0, 1.0)), seed=source.getrandbits(32)),
            stop=generation_pb2.StopOptions(max_tokens=source.randint(1, 200), ignore_eos=True),
        )

    async def _unary(self, source: random.Random) -> None:
        request = self._request(source)
        answer = await self.inference.Generate(
            inference_service_pb2.GenerateRequest.FromString(request.SerializeToString())
        )
        if answer.usage.completion_tokens != request.stop.max_tokens:
            self.faults.append(f"{answer.usage.completion_tokens} tokens of {request.stop.max_tokens}")

    async def _stream(self, source: random.Random) -> None:
        events = [message.WhichOneof("event") async for message in self.inference.StreamGenerate(self._request(source))]
        if events[:1] != ["started"] or events[-1:] != ["finished"] or set(events[1:-1]) - {"delta"}:
            self.faults.append(f"order of events: {events[:3]} ... {events[-3:]}")

    async def _leave(self, source: random.Random) -> None:
        call = self.inference.StreamGenerate(self._request(source))
        leave_after = source.randint(0, 20)
        count = 0
        async for _ in call:
            count += 1
            if count > leave_after:
                break
        call.cancel()

    async def _cancel(self, source: random.Random) -> None:
        request = self._request(source)
        named = inference_service_pb2.CancelGenerationRequest(request_id=request.request_id)
        async for _ in self.inference.StreamGenerate(request):
            await self.inference.CancelGeneration(named)

    async def _deadline(self, source: random.Random) -> None:
        async for _ in self.inference.StreamGenerate(self._request(source), timeout=source.uniform(0.001, 0.2)):
            pass

    async def _nonsense(self, source: random.Random) -> None:
        request = self._request(source)
        match source.randint(0, 3):
            case 0:
                request.sampling.temperature = float("nan")
            case 1:
                request.tokens.ids.append(2**31)
            case 2:
                request.model = "no-such-model"
            case _:
                request.stop.sequences.append("")
        await self._expect_refusal(request)

    async def _expect_refusal(self, request: inference_service_pb2.StreamGenerateRequest) -> None:
        async for message in self.inference.StreamGenerate(request):
            self.faults.append(f"accepted: {str(message)[:80]} for {str(request)[:200]}")

    async def _watch(self) -> None:
        while time.monotonic() < self.end:
            listed = await self.models.ListModels(model_service_pb2.ListModelsRequest())
            if listed.memory.used_bytes > listed.memory.limit_bytes:
                self.faults.append(f"over budget: {listed.memory}")
            self.resident_mib.append(self.usage.resident_mib())
            await asyncio.sleep(1)

    async def _settle(self, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            models = (await self.models.ListModels(model_service_pb2.ListModelsRequest())).models
            if not any(model.running_requests or model.waiting_requests for model in models):
                return
            await asyncio.sleep(0.1)
        self.faults.append(f"not idle {seconds:.0f} s after the last caller left: {models}")

    def growth_mib(self) -> float:
        """Resident memory: the last tenth of the run over its second tenth (the first one warms up)."""
        tenth = max(1, len(self.resident_mib) // 10)
        return max(self.resident_mib[-tenth:]) - max(self.resident_mib[tenth : 2 * tenth] or self.resident_mib[:1])


def main() -> int:
    """Exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from support import tiny_llama  # noqa: PLC0415 - found only now that tests/ is on the path

    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folders = [tiny_llama.build(Path(scratch) / name, hidden=128, seed=i) for i, name in enumerate(MODELS)]
        size = (folders[0] / "model.safetensors").stat().st_size
        config = Path(scratch) / "inferd.yaml"
        entries = [{"name": name, "path": str(folder)} for name, folder in zip(MODELS, folders, strict=True)]
        manager = {"memory_budget_gb": 2.5 * size / 2**30, "min_residency_s": 0.2}
        config.write_text(json.dumps({"manager": manager, "models": entries}))
        command = [f"{ROOT}/.venv/bin/inferd", "serve", "--config", str(config), "--listen", "127.0.0.1:0"]
        with server(command, RESULTS / "server-soak.log") as running:
            soak = asyncio.run(Soak.run(running.address, Usage(running.pid), options))
        if running.exit_code != 0:
            soak.faults.append(f"the server ended with code {running.exit_code}")
    if (growth := soak.growth_mib()) > GROWTH_LIMIT_MIB:
        soak.faults.append(f"resident memory grew by {growth:.0f} MiB")
    for what, count in sorted(soak.seen.items()):
        print(f"{count:8d}  {what}")
    print(
        f"memory: {soak.resident_mib[0]:.0f} MiB at first, {soak.resident_mib[-1]:.0f} at the end, growth {growth:+.0f}"
    )
    print("\n".join(["faults:", *soak.faults[:20]]) if soak.faults else "no faults")
    return bool(soak.faults)


if __name__ == "__main__":
    sys.exit(main())
