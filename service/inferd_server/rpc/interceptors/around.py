"""One wrapper for all four kinds of method: runs every handler inside the same layers and knows all open calls.

Streaming handlers are async generators, but grpc gets a coroutine that writes: with `async def … yield` handed to grpc,
a client that leaves during a write drops the generator, and its `finally` runs some time later in another task. Here
the cancellation arrives in our own coroutine, which closes the generator before it ends.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from inferd_server.core.errors import FieldViolation, InferdError, credentials_invalid, echo, invalid_parameter
from inferd_server.core.model import Clock

from .call import Call, Context, enter

Layer = Callable[[Call], AbstractAsyncContextManager[None]]
"""What runs around a handler; the first of a sequence is the outermost."""

WATCHES = frozenset(
    {
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/inferd.v1.ModelService/WatchModels",
    }
)
"""Streams that stay open until somebody ends them; at shutdown we do."""

UNREADABLE = object()
"""Stands for a request whose bytes are no message."""

UNREAD = object()
"""Stands for a request that was left unread, since nobody may ask it."""

CANCELLATION_SECONDS = 5.0
"""Far longer than grpc takes to cancel a task after its client has left (about a millisecond)."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]]


class Around(grpc.aio.ServerInterceptor):
    """The open calls of a server and the layers around each."""

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        is_known: Callable[[grpc.HandlerCallDetails], bool] = lambda details: True,
        clock: Clock = time.monotonic,
    ) -> None:
        """`is_known` says whether the layers may let a call through: one of strangers is answered unread."""
        self._layers = tuple(layers)
        self._is_known = is_known
        self._clock = clock
        self._calls: set[Call] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wrapped: dict[str, Handler] = {}
        self._watches_ended: InferdError | None = None

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> "Handler | None":
        """The handler of a method, wrapped; None (grpc's own UNIMPLEMENTED) where there is none."""
        handler = await continuation(details)
        if handler is None:
            return None
        if not self._is_known(details):
            return self._wrap_unread(details.method, handler)
        wrapped = self._wrapped.get(details.method)
        if wrapped is None:
            wrapped = self._wrapped[details.method] = self._wrap(details.method, handler)
        return wrapped

    def end_watches(self, error: InferdError) -> None:
        """End every watch with `error`, now and as they come."""
        self._watches_ended = error
        for call in list(self._calls):
            if call.method in WATCHES:
                call.end(error)

    def end_where(self, claim: Callable[[Call], bool], error: InferdError) -> None:
        """End with `error` every call that the claim holds for."""
        for call in filter(claim, list(self._calls)):
            call.end(error)

    def end_stalled(self, limit_seconds: float, error: InferdError) -> None:
        """End with `error` every call whose write has been pending for longer than the limit."""
        latest = self._clock() - limit_seconds
        for call in list(self._calls):
            if call.writing_since is not None and call.writing_since < latest:
                call.end(error)

    async def finished(self, timeout_seconds: float) -> int:
        """Wait until the tasks of all handlers have ended, `finally` blocks included; returns how many have not."""
        if not self._tasks:
            return 0
        _, pending = await asyncio.wait(list(self._tasks), timeout=timeout_seconds)
        return len(pending)

    def _wrap(self, method: str, handler: Handler) -> Handler:
        if handler.request_streaming:
            inner = handler.stream_stream if handler.response_streaming else handler.stream_unary
        else:
            inner = handler.unary_stream if handler.response_streaming else handler.unary_unary
        make = _HANDLERS[handler.request_streaming, handler.response_streaming]
        around = self._stream if handler.response_streaming else self._unary
        read = handler.request_deserializer if handler.request_streaming else _reading(handler.request_deserializer)
        return make(around(method, inner), read, handler.response_serializer)

    def _wrap_unread(self, method: str, handler: Handler) -> Handler:
        """grpc reads the message of a unary request before its handler begins, and those of a stream when asked."""
        around = self._stream if handler.response_streaming else self._unary
        respond = around(method, None)

        async def refuse(request: Any, context: Context) -> None:
            await respond(UNREAD, context)

        return _HANDLERS[True, handler.response_streaming](refuse, None, handler.response_serializer)

    def _unary(self, method: str, inner: Any) -> Callable[[Any, Context], Awaitable[Any]]:
        async def respond(request: Any, context: Context) -> Any:
            async with self._open(method, request, context):
                return await inner(request, context)

        return respond

    def _stream(self, method: str, inner: Any) -> Callable[[Any, Context], Awaitable[None]]:
        async def respond(request: Any, context: Context) -> None:
            async with self._open(method, request, context) as call, aclosing(inner(request, context)) as messages:
                async for message in messages:
                    call.writing_since = self._clock()
                    call.is_opening = not call.has_written
                    await _write(context, message)
                    call.writing_since = None
                    call.is_opening = False
                    call.has_written = True
                    if call.ending is not None:
                        raise asyncio.CancelledError

        return respond

    @asynccontextmanager
    async def _open(self, method: str, request: Any, context: Context) -> AsyncIterator[Call]:
        call = Call(method, context, self._clock())
        call.request_id = echo(getattr(request, "request_id", ""))
        call.model_as_asked = getattr(request, "model", "") or getattr(request, "name", "")
        call.model = echo(call.model_as_asked)
        enter(call)
        self._track()
        self._calls.add(call)
        try:
            async with AsyncExitStack() as stack:
                for layer in self._layers:
                    await stack.enter_async_context(layer(call))
                if self._watches_ended is not None and method in WATCHES:
                    raise self._watches_ended
                if request is UNREAD:  # its key has become valid meanwhile
                    raise credentials_invalid()
                if request is UNREADABLE:
                    raise invalid_parameter([FieldViolation("request", "the bytes are no message of this method")])
                yield call
        finally:
            self._calls.discard(call)

    def _track(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "grpc.aio runs handlers in tasks"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _reading(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """grpc answers a failing deserializer with UNKNOWN and the exception's text, and logs its traceback."""
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return UNREADABLE

    return read


async def _write(context: Context, message: Any) -> None:
    """Write; where the client has just left, that is a cancellation like any other.

    The failing write comes a moment before grpc cancels the task. To unwind at once would let that cancellation hit
    the handler's cleanup, so it is waited for.
    """
    try:
        await context.write(message)
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        await asyncio.sleep(CANCELLATION_SECONDS)
        raise asyncio.CancelledError from None


_HANDLERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
