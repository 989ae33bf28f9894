"""The load: one grpc.aio channel, raw stubs, all streams in one event loop.

    python benchmarks/client_load.py HOST:PORT MODEL_NAME

Answers commands on stdin (workload.py).
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from workload import SETTLED_TOKENS, Asked, Batch, Measurement, Reception, Trial, answer_commands, quantile

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
        return Measurement.of(
            [
                await self._batch(task, requests, task.long(number), with_ids)
                for number, requests in enumerate(task.batches())
            ]
        )

    async def _batch(self, task: Trial, requests: list[Asked], long: list[Asked], with_ids: bool) -> Batch:
        """At most `streams` at a time; the long prompts when each of the first ones has settled."""
        rest = iter(enumerate(requests))
        settled = [asyncio.Event() for _ in range(task.streams)]

        received: dict[int, Reception] = {}

        async def stream(event: asyncio.Event) -> None:
            for number, asked in rest:
                received[number] = await self._receive(self._request(task, asked, with_ids), event)

        async def arrive(asked: Asked) -> Reception:
            for event in settled:
                await event.wait()
            return await self._receive(self._request(replace(task, schema=""), asked))

        start = time.perf_counter()
        _, late = await asyncio.gather(
            asyncio.gather(*(stream(event) for event in settled)), asyncio.gather(*(arrive(asked) for asked in long))
        )
        return Batch(start, [received[number] for number in range(len(requests))], list(late))

    def _request(
        self, task: Trial, asked: Asked, with_ids: bool = False
    ) -> inference_service_pb2.StreamGenerateRequest:
        output = generation_pb2.OutputOptions(token_ids=with_ids)
        if task.schema:
            output.constraint.json_schema = task.schema
        return inference_service_pb2.StreamGenerateRequest(
            model=self.model,
            prompt=asked.prompt,
            sampling=generation_pb2.SamplingOptions(temperature=0.0),
            stop=generation_pb2.StopOptions(max_tokens=asked.max_tokens, ignore_eos=not task.schema),
            output=output,
            stream=inference_service_pb2.StreamOptions(coalesce_ms=task.coalesce_ms),
        )

    async def _receive(
        self, request: inference_service_pb2.StreamGenerateRequest, settled: asyncio.Event | None = None
    ) -> Reception:
        one = Reception(time.perf_counter())
        async for message in self.stub.StreamGenerate(request):
            event = message.WhichOneof("event")
            if event == "delta":
                one.times.append(time.perf_counter())
                one.ids.extend(message.delta.token_ids)
                if settled and message.delta.completion_tokens >= SETTLED_TOKENS:
                    settled.set()
            elif event == "started":
                one.prompt_tokens = message.started.prompt_tokens
            elif event == "finished":
                one.tokens = message.finished.usage.completion_tokens
                one.cached_tokens = message.finished.usage.cached_prompt_tokens
        return one

    def late(self, trial: dict[str, Any], arrivals: int) -> dict[str, float]:
        """TTFT in ms of single requests: to an idle model, and beside the trial's running streams."""
        return self.runner.run(self._late(Trial(**trial), arrivals))

    async def _late(self, task: Trial, arrivals: int) -> dict[str, float]:
        idle = await self._arrive(task, arrivals, "idle")
        async with self._background(task):
            beside = await self._arrive(task, arrivals, "beside")
        return {
            "idle_p50_ms": quantile(idle, 0.5),
            "idle_p90_ms": quantile(idle, 0.9),
            "beside_p50_ms": quantile(beside, 0.5),
            "beside_p90_ms": quantile(beside, 0.9),
        }

    async def _arrive(self, task: Trial, arrivals: int, where: str) -> list[float]:
        pauses = random.Random(task.seed)
        arriving = replace(task, waves=arrivals, streams=1, max_tokens=LATE_TOKENS, seed=f"{task.seed}/{where}")
        ttft_ms = []
        for (asked,) in arriving.batches():
            await asyncio.sleep(pauses.uniform(0.005, 0.030))  # lands anywhere within a step
            ttft_ms.append(1e3 * (await self._receive(self._request(task, asked))).ttft)
        return ttft_ms

    @asynccontextmanager
    async def _background(self, task: Trial) -> AsyncIterator[None]:
        started = [asyncio.Event() for _ in range(task.streams)]
        running = replace(task, waves=1, max_tokens=BACKGROUND_TOKENS, seed=f"{task.seed}/background").batches()[0]
        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(self._run_on(self._request(task, asked), event))
                for asked, event in zip(running, started, strict=True)
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
