"""A real gRPC server of the contract whose answers are scripted: the other end of the client's tests.

It runs on an event loop in a thread of its own, so that blocking clients, async clients and subprocesses can all call
it. Each call of a method takes that method's next outcome; the last one repeats.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2
from inferd.v1 import inference_service_pb2_grpc as inference_grpc
from inferd.v1 import model_service_pb2_grpc as models_grpc

Response = inference_service_pb2.StreamGenerateResponse


@dataclass(frozen=True)
class Refusal:
    """An error as the real server sends it; reason "" sends a bare gRPC error."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "refused"
    metadata: dict[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None
    violations: tuple[tuple[str, str], ...] = ()
    trailers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Pause:
    """A step that takes so long."""

    seconds: float


FOREVER = Pause(3600)
Outcome = Any  # unary: a message, a Refusal or a Pause before the next outcome; streams: a list of those


@dataclass
class Call:
    """One call as the server saw it."""

    method: str
    request: Any
    metadata: dict[str, str | bytes]
    deadline_seconds: float | None
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    was_cancelled: bool = False


class WireServer:
    """Scripts and the calls that came."""

    def __init__(self) -> None:
        self.address = ""
        self.calls: list[Call] = []
        self.arrived = threading.Condition()
        self._scripts: dict[str, list[Outcome]] = defaultdict(list)

    def script(self, method: str, *outcomes: Outcome) -> None:
        """Sets what the next calls of `method` get; the last outcome repeats."""
        self._scripts[method] = list(outcomes)

    def count(self, method: str) -> int:
        """How many calls of `method` came."""
        return sum(call.method == method for call in self.calls)

    def last(self, method: str, timeout_seconds: float = 10) -> Call:
        """The latest call of `method`; waits for the first."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.count(method) > 0, timeout_seconds)
        return [call for call in self.calls if call.method == method][-1]

    async def unary(self, method: str, request: Any, context: Any) -> Any:
        """Plays the next outcome of a unary method."""
        [message] = [message async for message in self.stream(method, request, context)]
        return message

    async def stream(self, method: str, request: Any, context: Any) -> AsyncIterator[Any]:
        """Plays the next outcome of a streaming method."""
        outcome = self._next_outcome(method)
        call = self._note(method, request, context)
        try:
            for step in outcome if isinstance(outcome, list) else [outcome]:
                if isinstance(step, Pause):
                    call.started.set()
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Refusal):
                    await _abort(context, step)
                else:
                    yield step
        except (asyncio.CancelledError, GeneratorExit):
            call.was_cancelled = True
            raise
        finally:
            call.ended.set()

    def _next_outcome(self, method: str) -> Outcome:
        outcomes = self._scripts[method]
        return outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]

    def _note(self, method: str, request: Any, context: Any) -> Call:
        remaining = context.time_remaining()
        call = Call(method, request, dict(context.invocation_metadata()), remaining)
        with self.arrived:
            self.calls.append(call)
            self.arrived.notify_all()
        return call


@contextmanager
def running(address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> Iterator[WireServer]:
    """A scripted server on a free port (or a Unix socket) until the block ends; plaintext without credentials."""
    server = WireServer()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        listening = asyncio.run_coroutine_threadsafe(_start(server, address, credentials), loop).result(10)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(_stop(listening), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(server: WireServer, address: str, credentials: grpc.ServerCredentials | None) -> grpc.aio.Server:
    listening = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)])
    inference_grpc.add_InferenceServiceServicer_to_server(_servicer(server, _INFERENCE), listening)
    models_grpc.add_ModelServiceServicer_to_server(_servicer(server, _MODELS), listening)
    health_pb2_grpc.add_HealthServicer_to_server(_servicer(server, ("Check", "Watch", "List")), listening)
    port = listening.add_secure_port(address, credentials) if credentials else listening.add_insecure_port(address)
    server.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"
    await listening.start()
    return listening


async def _stop(listening: grpc.aio.Server) -> None:
    await listening.stop(None)
    # Give the cut handlers their turn to end before the loop does.
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.01)


_INFERENCE = ("Generate", "StreamGenerate", "Embed", "Rerank", "Tokenize", "CancelGeneration", "GetServerInfo")
_MODELS = ("ListModels", "GetModel", "LoadModel", "UnloadModel", "WatchModels")
_STREAMS = ("StreamGenerate", "WatchModels", "Watch")


def _servicer(server: WireServer, methods: Sequence[str]) -> Any:
    def method(name: str) -> Any:
        play = server.stream if name in _STREAMS else server.unary
        if name in _STREAMS:

            async def streaming(self: object, request: Any, context: Any) -> AsyncIterator[Any]:
                async for message in play(name, request, context):
                    yield message

            return streaming

        async def unary(self: object, request: Any, context: Any) -> Any:
            return await play(name, request, context)

        return unary

    return type("Servicer", (), {name: method(name) for name in methods})()


async def _abort(context: Any, refusal: Refusal) -> None:
    context.set_trailing_metadata(refusal.trailers)
    if not refusal.reason:
        await context.abort(refusal.code, refusal.message)
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    info = error_details_pb2.ErrorInfo(reason=refusal.reason, domain="inferd", metadata=refusal.metadata)
    status.details.add().Pack(info)
    if refusal.retry_seconds is not None:
        delay = Duration()
        delay.FromMilliseconds(round(refusal.retry_seconds * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if refusal.violations:
        request = error_details_pb2.BadRequest()
        for path, description in refusal.violations:
            request.field_violations.add(field=path, description=description)
        status.details.add().Pack(request)
    await context.abort_with_status(rpc_status.to_status(status))


def started(request_id: str = "r1", model: str = "tiny") -> Response:
    """A `started` event."""
    served = generation_pb2.ServedModel(name=model, revision="rev", load_generation=1)
    return Response(sequence=0, started=Response.Started(request_id=request_id, model=served, prompt_tokens=3))


def delta(text: str, completion_tokens: int = 1, **fields: Any) -> Response:
    """A `delta` event."""
    return Response(delta=Response.Delta(text=text, completion_tokens=completion_tokens, **fields))


def waiting(state: str, position: int = 0, progress: float = 0.0) -> Response:
    """A `waiting` event; state as in `WAIT_STATE_…`."""
    value = inference_service_pb2.WaitState.Value(f"WAIT_STATE_{state}")
    return Response(waiting=Response.Waiting(state=value, queue_position=position, load_progress=progress))


def finished(reason: str = "EOS", completion_tokens: int = 2) -> Response:
    """A `finished` event; reason as in `FINISH_REASON_…`."""
    return Response(
        finished=Response.Finished(
            finish_reason=generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason}"),
            usage=generation_pb2.Usage(prompt_tokens=3, completion_tokens=completion_tokens),
            timing=generation_pb2.Timing(total=Duration(seconds=1, nanos=500_000_000)),
        )
    )


def answer(*texts: str) -> list[Response]:
    """A whole stream that says `texts`."""
    return [started(), *map(delta, texts), finished(completion_tokens=len(texts))]


def model(name: str, state: str = "LOADED", **fields: Any) -> model_service_pb2.Model:
    """A model of the registry; state as in `MODEL_STATE_…`."""
    value = model_service_pb2.ModelState.Value(f"MODEL_STATE_{state}")
    return model_service_pb2.Model(name=name, state=value, **fields)


def health(status: str) -> health_pb2.HealthCheckResponse:
    """A health status, e.g. `SERVING`."""
    return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.ServingStatus.Value(status))
