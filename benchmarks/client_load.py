"""The load: one grpc.aio channel, raw stubs, all streams of a wave started together.

    python benchmarks/client_load.py HOST:PORT MODEL_NAME

Answers commands on stdin (workload.py).
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from workload import Measurement, Reception, Trial, answer_commands, quantile

from inferd.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc

LATE_TOKENS = 8
BACKGROUND_TOKENS = 3_000


class Load:
    """One channel to the server and the trials over it."""

    def __init__(self, address: str, model: str) -> None:
        self.address, self.model = address, model
        self.runner = asyncio.Runner()
        self.stub = self.runner.run(self._connect())

    async def _connect(self) -> "inference_service_pb2_grpc.InferenceServiceAsyncStub":
        channel = grpc.aio.insecure_channel(self.address)
        await channel.channel_ready()
        return inference_service_pb2_grpc.InferenceServiceStub(channel)

    def run(self, trial: dict[str, Any], with_ids: bool = False) -> Measurement:
        """Run a trial; with `with_ids` the outputs' token ids come back too."""
        return self.runner.run(self._run(Trial(**trial), with_ids))

    async def _run(self, task: Trial, with_ids: bool) -> Measurement:
        waves = []
        for wave in range(task.waves):
            requests = [self._request(task, prompt, task.max_tokens, with_ids) for prompt in task.prompts(wave)]
            start = time.perf_counter()
            received = await asyncio.gather(*(self._receive(request) for request in requests))
            waves.append((start, max(one.times[-1] for one in received), list(received)))
        return Measurement.of(waves)

    def _request(
        self, task: Trial, prompt: str, max_tokens: int, with_ids: bool = False
    ) -> inference_service_pb2.StreamGenerateRequest:
        return inference_service_pb2.StreamGenerateRequest(
            model=self.model,
            prompt=prompt,
            sampling=generation_pb2.SamplingOptions(temperature=0.0),
            stop=generation_pb2.StopOptions(max_tokens=max_tokens, ignore_eos=True),
            output=generation_pb2.OutputOptions(token_ids=with_ids),
            stream=inference_service_pb2.StreamOptions(coalesce_ms=task.coalesce_ms),
        )

    async def _receive(self, request: inference_service_pb2.StreamGenerateRequest) -> Reception:
        times: list[float] = []
        one = Reception(times, 0, 0, [])
        async for message in self.stub.StreamGenerate(request):
            event = message.WhichOneof("event")
            if event == "delta":
                times.append(time.perf_counter())
                one.ids.extend(message.delta.token_ids)
            elif event == "started":
                one.prompt_tokens = message.started.prompt_tokens
            elif event == "finished":
                one.tokens = message.finished.usage.completion_tokens
        return one

    def late(self, trial: dict[str, Any], arrivals: int) -> dict[str, float]:
        """TTFT in ms of single requests: to an idle model, and beside the trial's running streams."""
        return self.runner.run(self._late(Trial(**trial), arrivals))

    async def _late(self, task: Trial, arrivals: int) -> dict[str, float]:
        idle = await self._arrive(task, arrivals, wave=0)
        async with self._background(task):
            beside = await self._arrive(task, arrivals, wave=1)
        return {
            "idle_p50_ms": quantile(idle, 0.5),
            "idle_p90_ms": quantile(idle, 0.9),
            "beside_p50_ms": quantile(beside, 0.5),
            "beside_p90_ms": quantile(beside, 0.9),
        }

    async def _arrive(self, task: Trial, arrivals: int, wave: int) -> list[float]:
        pauses = random.Random(task.seed)
        prompts = Trial(**{**task.__dict__, "streams": arrivals}).prompts(wave)
        ttft_ms = []
        for prompt in prompts:
            await asyncio.sleep(pauses.uniform(0.005, 0.030))  # lands anywhere within a step
            start = time.perf_counter()
            one = await self._receive(self._request(task, prompt, LATE_TOKENS))
            ttft_ms.append(1e3 * (one.times[0] - start))
        return ttft_ms

    @asynccontextmanager
    async def _background(self, task: Trial) -> AsyncIterator[None]:
        started = [asyncio.Event() for _ in range(task.streams)]
        prompts = task.prompts(2)
        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(self._run_on(self._request(task, prompt, BACKGROUND_TOKENS), event))
                for prompt, event in zip(prompts, started, strict=True)
            ]
            for event in started:
                await event.wait()
            yield
            for stream in streams:
                stream.cancel()

    async def _run_on(self, request: inference_service_pb2.StreamGenerateRequest, started: asyncio.Event) -> None:
        while True:  # the next one at once, should the arrivals take longer than one output
            call = self.stub.StreamGenerate(request)
            try:
                async for message in call:
                    if message.WhichOneof("event") == "delta":
                        started.set()
            finally:
                call.cancel()


if __name__ == "__main__":
    load = Load(sys.argv[1], sys.argv[2])
    answer_commands({"run": load.run, "late": load.late})
