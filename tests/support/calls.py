"""Calls to a real server through the generated stubs, and what must hold of every stream."""

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import inference_service_pb2_grpc, model_service_pb2_grpc
from inferd.v1 import model_service_pb2 as mod

Response = inf.StreamGenerateResponse
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
MAX_MESSAGE_NBYTES = 64 * 2**20


class Peer:
    """One connection to a server, with the stubs of every service on it. No retries: what a test sees happened once."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        # A subchannel pool of its own: peers of one test are different connections.
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_MESSAGE_NBYTES),
        ]
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=options)
        self.inference = inference_service_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> Self:
        await asyncio.wait_for(self.channel.channel_ready(), 20)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.channel.close()

    async def check(self, service: str) -> int:
        """The health of a service."""
        answer = await self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        return int(answer.status)

    async def model(self, name: str) -> mod.Model:
        """One model of the registry."""
        answer = await self.models.GetModel(mod.GetModelRequest(name=name), timeout=10)
        return answer.model

    async def wait_for_model(self, name: str, condition: Callable[[mod.Model], bool], seconds: float = 10) -> mod.Model:
        """Poll until `condition` holds; fails with the last state after `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition(model := await self.model(name)):
            assert time.monotonic() < deadline, f"still after {seconds} s: {model}"
            await asyncio.sleep(0.01)
        return model

    async def wait_until_ready(self, seconds: float = 60) -> None:
        """Until preloads are done."""
        deadline = time.monotonic() + seconds
        while await self.check("readiness") != SERVING:
            assert time.monotonic() < deadline, "not ready in time"
            await asyncio.sleep(0.02)

    async def wait_until_idle(self, name: str, seconds: float = 5) -> None:
        """Until the model runs nothing and nothing waits for it."""
        await self.wait_for_model(name, is_idle, seconds)


def is_idle(model: mod.Model) -> bool:
    """Nothing runs, nothing waits."""
    return model.running_requests == model.waiting_requests == 0


@dataclass
class Answer:
    """A stream, read to its end and checked against the rules that hold for every stream."""

    waiting: list[Response.Waiting] = field(default_factory=list)
    started: Response.Started | None = None
    deltas: list[Response.Delta] = field(default_factory=list)
    finished: Response.Finished | None = None
    error: grpc.aio.AioRpcError | None = None
    last_sequence: int = -1

    def add(self, response: Response) -> None:
        """Take one message; fails where it breaks a rule of docs/semantics.md §7."""
        self.last_sequence += 1
        assert response.sequence == self.last_sequence, "sequence has a gap"
        assert self.finished is None, "a message after finished"
        kind = response.WhichOneof("event")
        if kind == "waiting":
            self.waiting.append(response.waiting)
        elif kind == "started":
            assert self.started is None, "started twice"
            self.started = response.started
        elif kind == "delta":
            assert self.started is not None, "a delta before started"
            self.deltas.append(response.delta)
        else:
            assert kind == "finished"
            assert self.started is not None, "finished without started"
            self.finished = response.finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    @property
    def logprobs(self) -> list[gen.TokenLogprob]:
        return [logprob for delta in self.deltas for logprob in delta.logprobs]

    @property
    def end(self) -> Response.Finished:
        """Finished; fails with the error where there is none."""
        assert self.error is None, self.error
        assert self.finished is not None
        return self.finished

    @property
    def failure(self) -> grpc.aio.AioRpcError:
        """The error; fails where the stream ended well."""
        assert self.error is not None, f"it ended well: {self.finished}"
        assert self.finished is None, "finished, and then an error"
        return self.error


async def read(stream: AsyncIterable[Response], answer: Answer | None = None) -> Answer:
    """Read a stream to its end, whichever it is."""
    answer = answer or Answer()
    try:
        async for response in stream:
            answer.add(response)
    except grpc.aio.AioRpcError as error:
        answer.error = error
        return answer
    assert answer.finished is not None, "OK without finished"
    return answer


async def read_until(stream: Any, kind: str, answer: Answer | None = None) -> Answer:
    """Read up to and including the first event of this kind."""
    answer = answer or Answer()
    async for response in stream:
        answer.add(response)
        if response.WhichOneof("event") == kind:
            return answer
    raise AssertionError(f"the stream ended before {kind}")


def options(**values: Any) -> dict[str, Any]:
    """Fields of a request that most tests set, flat: each goes where the contract has it.

    `temperature` is 0 unless given; text as `prompt`, `chat` (list of (role, text)) or `ids`.
    """
    message: dict[str, Any] = {"sampling": {"temperature": 0.0}, "stop": {}, "output": {}, "scheduling": {}}
    for key, value in values.items():
        if key == "chat":
            message["chat"] = chat(*value)
        elif key == "ids":
            message["tokens"] = gen.TokenInput(ids=value)
        elif (section := _SECTIONS.get(key)) is not None:
            message.setdefault(section, {})[key] = value
        else:
            message[key] = value
    return {key: value for key, value in message.items() if value != {}}


_SECTIONS = {
    **{field.name: "sampling" for field in gen.SamplingOptions.DESCRIPTOR.fields},
    **{field.name: "stop" for field in gen.StopOptions.DESCRIPTOR.fields},
    **{field.name: "scheduling" for field in gen.SchedulingOptions.DESCRIPTOR.fields},
    **{"return_ids": "output", "top_logprobs": "output", "rendered_prompt": "output", "constraint": "output"},
    **{field.name: "stream" for field in inf.StreamOptions.DESCRIPTOR.fields},
}


def chat(*turns: tuple[str, str | Sequence[str | bytes]], **more: Any) -> gen.ChatInput:
    """A chat; roles as words. A turn is a text, or a list of texts and images (bytes)."""
    return gen.ChatInput(
        messages=[
            gen.ChatMessage(
                role=gen.Role.Value(f"ROLE_{role.upper()}"),
                parts=map(_part, [content] if isinstance(content, str) else content),
            )
            for role, content in turns
        ],
        **more,
    )


def _part(content: str | bytes) -> gen.ContentPart:
    if isinstance(content, str):
        return gen.ContentPart(text=content)
    return gen.ContentPart(image=gen.Blob(mime_type="application/octet-stream", data=content))


def unary(model: str, **values: Any) -> inf.GenerateRequest:
    """A request of Generate."""
    return inf.GenerateRequest(model=model, **_renamed(options(**values)))


def streamed(model: str, **values: Any) -> inf.StreamGenerateRequest:
    """The same of StreamGenerate."""
    return inf.StreamGenerateRequest(model=model, **_renamed(options(**values)))


def _renamed(message: dict[str, Any]) -> dict[str, Any]:
    """`return_ids` is output.token_ids: stop has a field of that name too."""
    output = message.get("output")
    if output and "return_ids" in output:
        output["token_ids"] = output.pop("return_ids")
    return message


def endless(model: str, **values: Any) -> inf.StreamGenerateRequest:
    """A stream that goes on until somebody ends it, or for many seconds."""
    return streamed(model, **{"prompt": "go on", "ignore_eos": True, "max_tokens": 1_000_000, **values})


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    """The error of a unary call that must fail."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"it succeeded: {answer}")


def names(models: Sequence[mod.Model]) -> list[str]:
    """Their names."""
    return [model.name for model in models]
