"""Clients that contend for the room of one server, over its socket: what they sent, what came back, and when."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from inferd.v1 import (
    generation_pb2,
    inference_service_pb2,
    inference_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
)
from support.servers import ServerProcess, serving

GIB = 2**30
SETTLE_SECONDS = 20.0
LONG = 3900
"""Tokens of an answer that goes on until it is ended from outside (the context holds 4096)."""


def serving_with_faults(config: Path, **environ: str) -> AbstractContextManager[ServerProcess]:
    """A server whose engines fail or dawdle as told (fakes/faulty_server.py)."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return serving(config, program=("-m", "fakes.faulty_server"), PYTHONPATH=path, **environ)


def state_of(model: model_service_pb2.Model) -> str:
    return model_service_pb2.ModelState.Name(model.state).removeprefix("MODEL_STATE_")


def is_at_rest(model: model_service_pb2.Model) -> bool:
    """Nothing about it goes on, and it is charged for at most one generation that serves."""
    state, memory = state_of(model), model.memory
    if model.running_requests or model.waiting_requests:
        return False
    if state == "LOADED":
        return bool(memory.charged_bytes == max(memory.estimated_bytes, memory.weights_bytes))
    return state in {"UNLOADED", "FAILED"} and memory.charged_bytes == 0


def policy(
    strategy: str = "", *, wait_timeout: float | None = None, preempt_after: float | None = None
) -> generation_pb2.ContentionPolicy:
    name = f"CONTENTION_STRATEGY_{strategy.upper() or 'UNSPECIFIED'}"
    message = generation_pb2.ContentionPolicy(strategy=generation_pb2.ContentionStrategy.Value(name))
    for field_name, seconds in (("wait_timeout", wait_timeout), ("preempt_after", preempt_after)):
        if seconds is not None:
            getattr(message, field_name).FromNanoseconds(int(seconds * 1e9))
    return message


def request(
    model: str,
    tokens: int = 8,
    *,
    prompt: str = "hello",
    request_id: str = "",
    seed: int | None = None,
    temperature: float = 0.0,
    stop: Sequence[str] = (),
    regex: str = "",
    logprobs: int | None = None,
    priority: int = 0,
    preemptible: bool | None = None,
    load_if_needed: bool | None = None,
    contention: generation_pb2.ContentionPolicy | None = None,
    waiting_events: bool = False,
    **sampling: Any,
) -> inference_service_pb2.StreamGenerateRequest:
    """A streamed request; greedy unless told otherwise. Only with a `regex` does an end-of-sequence token end it."""
    constraint = generation_pb2.OutputConstraint(regex=regex) if regex else None
    return inference_service_pb2.StreamGenerateRequest(
        request_id=request_id,
        model=model,
        prompt=prompt,
        sampling=generation_pb2.SamplingOptions(temperature=temperature, seed=seed, **sampling),
        stop=generation_pb2.StopOptions(max_tokens=tokens, ignore_eos=not regex, sequences=stop),
        output=generation_pb2.OutputOptions(token_ids=True, top_logprobs=logprobs, constraint=constraint),
        scheduling=generation_pb2.SchedulingOptions(
            contention=contention, priority=priority, preemptible=preemptible, load_if_needed=load_if_needed
        ),
        stream=inference_service_pb2.StreamOptions(waiting_events=waiting_events, coalesce_ms=0),
    )


def unary(message: inference_service_pb2.StreamGenerateRequest) -> inference_service_pb2.GenerateRequest:
    """The same request for Generate (fields 1 to 15 are the same)."""
    plain = inference_service_pb2.StreamGenerateRequest()
    plain.CopyFrom(message)
    plain.ClearField("stream")
    return inference_service_pb2.GenerateRequest.FromString(plain.SerializeToString())


@dataclass
class Output:
    """What one stream sent."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    started: Any = None
    finished: Any = None
    waiting: list[Any] = field(default_factory=list)  # (seconds since the call, state, position, progress)
    events: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)

    @property
    def wait_states(self) -> list[str]:
        """The states waited in, repetitions taken together."""
        names = [name for _, name, _, _ in self.waiting]
        return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


class Answer:
    """A streamed request being read by a task of its own.

    Attributes:
        output: what came so far.
        seconds: from the call to its end.
    """

    def __init__(self, call: Any) -> None:
        self.output = Output()
        self.seconds = 0.0
        self.started_after = 0.0
        self._call = call
        self._begun_at = time.monotonic()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> Output:
        try:
            async for message in self._call:
                self._take(message)
                self._news.set()
            return self.output
        finally:
            self.seconds = time.monotonic() - self._begun_at
            self._news.set()

    def _take(self, message: Any) -> None:
        output, kind = self.output, message.WhichOneof("event")
        output.sequences.append(message.sequence)
        output.events.append(kind)
        event = getattr(message, kind)
        if kind == "waiting":
            name = inference_service_pb2.WaitState.Name(event.state).removeprefix("WAIT_STATE_")
            seconds = time.monotonic() - self._begun_at
            output.waiting.append((seconds, name, event.queue_position, event.load_progress))
        elif kind == "delta":
            output.text += event.text
            output.ids.extend(event.token_ids)
            output.logprobs.extend(event.logprobs)
        elif kind == "started":
            output.started = event
            self.started_after = time.monotonic() - self._begun_at
        else:
            output.finished = event

    async def until(self, claim: Any, seconds: float = SETTLE_SECONDS) -> "Answer":
        """Wait until a claim about the output holds; raises what the call ended with before that."""
        async with asyncio.timeout(seconds):
            while not claim(self.output):
                if self._task.done():
                    await self._task
                    raise AssertionError(f"the stream ended before: {self.output}")
                self._news.clear()
                await self._news.wait()
        return self

    async def tokens(self, count: int) -> "Answer":
        """Wait for so many tokens."""
        return await self.until(lambda output: len(output.ids) >= count)

    async def waits(self, state: str) -> "Answer":
        """Wait for a waiting event of that state (needs waiting_events)."""
        return await self.until(lambda output: any(name == state for _, name, _, _ in output.waiting))

    async def result(self, seconds: float = SETTLE_SECONDS) -> Output:
        """The whole output; raises what the call ended with."""
        async with asyncio.timeout(seconds):
            await asyncio.wait([self._task])
        output = self._task.result()
        assert output.sequences == list(range(len(output.sequences)))
        assert output.events.count("started") == output.events.count("finished") == 1
        assert output.events[-1] == "finished"
        return output

    async def error(self, seconds: float = SETTLE_SECONDS) -> grpc.aio.AioRpcError:
        """What the call ended with, if it is an error."""
        async with asyncio.timeout(seconds):
            await asyncio.wait([self._task])
        error = self._task.exception()
        assert isinstance(error, grpc.aio.AioRpcError), f"no error: {self.output}"
        return error

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def leave(self) -> None:
        """Cancel the call, as a client does that goes away."""
        self._call.cancel()
        with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await self._task


class Client:
    """One client: its channel, and short words for what tests do."""

    def __init__(self, address: str, **options: int) -> None:
        # A pool of its own: channels of one process share a connection otherwise.
        options = {"use_local_subchannel_pool": 1, "enable_retries": 0, **options}
        self.channel = grpc.aio.insecure_channel(
            address, options=[(f"grpc.{name}", value) for name, value in options.items()]
        )
        self.inference: Any = inference_service_pb2_grpc.InferenceServiceStub(self.channel)
        self.models: Any = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self._answers: list[Answer] = []

    async def close(self) -> None:
        for answer in self._answers:
            await answer.leave()
        await self.channel.close()

    # --- requests

    def ask(self, model: str, tokens: int = 8, *, timeout: float | None = None, **options: Any) -> Answer:
        """Begin a streamed request."""
        answer = Answer(self.inference.StreamGenerate(request(model, tokens, **options), timeout=timeout))
        self._answers.append(answer)
        return answer

    async def answer(self, model: str, tokens: int = 8, **options: Any) -> Output:
        """A streamed request to its end."""
        return await self.ask(model, tokens, **options).result()

    async def run(self, model: str, count: int = 2, **options: Any) -> Answer:
        """A request that runs until it is left: `count` tokens of it are here already."""
        return await self.ask(model, LONG, **options).tokens(count)

    async def cancel(self, request_id: str) -> bool:
        message = inference_service_pb2.CancelGenerationRequest(request_id=request_id)
        return bool((await self.inference.CancelGeneration(message)).cancelled)

    # --- models

    async def load(self, name: str, timeout: float | None = SETTLE_SECONDS, **options: Any) -> Any:
        return await self.models.LoadModel(model_service_pb2.LoadModelRequest(name=name, **options), timeout=timeout)

    async def unload(self, name: str, mode: str = "DRAIN", drain_timeout: float | None = None) -> Any:
        message = model_service_pb2.UnloadModelRequest(
            name=name, mode=model_service_pb2.UnloadMode.Value(f"UNLOAD_MODE_{mode}")
        )
        if drain_timeout is not None:
            message.drain_timeout.FromNanoseconds(int(drain_timeout * 1e9))
        return await self.models.UnloadModel(message, timeout=SETTLE_SECONDS)

    async def model(self, name: str) -> Any:
        return (await self.models.GetModel(model_service_pb2.GetModelRequest(name=name))).model

    async def state(self, name: str) -> str:
        return state_of(await self.model(name))

    async def states(self) -> dict[str, str]:
        listed = await self.list()
        return {model.name: state_of(model) for model in listed.models}

    async def list(self, **options: Any) -> Any:
        return await self.models.ListModels(model_service_pb2.ListModelsRequest(**options))

    async def until_state(self, name: str, *states: str, seconds: float = SETTLE_SECONDS) -> Any:
        """Wait until a model is in one of these states."""
        async with asyncio.timeout(seconds):
            while state_of(model := await self.model(name)) not in states:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.005)
        return model

    async def settled(self) -> Any:
        """Wait until nothing runs, waits, loads or leaves; the ledger is exact all the while."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                listed = await self.list()
                check_ledger(listed)
                if all(map(is_at_rest, listed.models)):
                    return listed
                await asyncio.sleep(0.01)

    async def clear(self) -> None:
        """Unload everything by force. A pin would outlive that: tests take back those they set."""
        for model in (await self.list()).models:
            if state_of(model) != "UNLOADED":
                await self.unload(model.name, "FORCE")
        assert (await self.settled()).memory.used_bytes == 0


def check_ledger(listed: Any) -> None:
    """One snapshot: within the limit, and exactly the sum of what the models are charged."""
    memory = listed.memory
    charged = sum(model.memory.charged_bytes for model in listed.models)
    assert memory.used_bytes == charged, f"{memory.used_bytes} used, {charged} charged"
    assert memory.used_bytes <= memory.limit_bytes, f"{memory.used_bytes} of {memory.limit_bytes}"
    assert memory.reserved_bytes <= memory.used_bytes
    for model in listed.models:
        if state_of(model) == "UNLOADED":
            assert model.memory.charged_bytes == 0, model


@asynccontextmanager
async def ledger_watched(address: str, every_seconds: float = 0.02) -> AsyncIterator[list[int]]:
    """Check the ledger all along, by a client of its own; yields the number of looks so far, in a list."""
    looks = [0]

    async def look() -> None:
        client = Client(address)
        try:
            while True:
                check_ledger(await client.list())
                looks[0] += 1
                await asyncio.sleep(every_seconds)
        finally:
            await client.close()

    task = asyncio.create_task(look())
    try:
        yield looks
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def connected(server: ServerProcess) -> AsyncIterator[Client]:
    """A client; at the end nothing is left in the server, and the ledger was exact all along."""
    client = Client(server.address)
    try:
        async with ledger_watched(server.address):
            yield client
            for answer in client._answers:
                await answer.leave()
            await client.settled()
    finally:
        try:
            await client.clear()
        finally:
            await client.close()
