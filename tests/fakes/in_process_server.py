"""Stands for grpc.aio's server: calls are made by calling, with the bytes that would have come over the wire."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc


@dataclass
class FakeContext:
    """One call as its handler sees it, and how it ended.

    Attributes:
        leaves: the client goes after the first message.
        details: the bytes of its google.rpc.Status, if it has one.
    """

    leaves: bool
    ended: grpc.StatusCode = grpc.StatusCode.OK
    details: bytes = b""
    written: list[Any] = field(default_factory=list)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def time_remaining(self) -> float | None:
        return None

    def code(self) -> grpc.StatusCode:
        return self.ended

    async def write(self, message: Any) -> None:
        self.written.append(message)
        await asyncio.sleep(0)
        if self.leaves:
            raise asyncio.CancelledError

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        self.ended = code
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: Any) -> None:
        self.ended, self.details = status.code, dict(status.trailing_metadata)["grpc-status-details-bin"]
        raise grpc.aio.AbortError


class InProcessServer:
    """Takes the place of `grpc.aio.server`."""

    def __init__(self, interceptors: Sequence[Any] = (), options: Sequence[Any] = ()) -> None:
        (self._around,) = interceptors
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        pass

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self._handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    async def call(self, method: str, data: bytes, *, leaves: bool) -> FakeContext:
        """Make a call, to its end; whatever its handler lets through comes through."""

        class Details:
            def __init__(self) -> None:
                self.method = method
                self.invocation_metadata = ()

        async def found(details: Any) -> Any:
            return self._handlers[method]

        handler = await self._around.intercept_service(found, Details())
        context = FakeContext(leaves)
        request = handler.request_deserializer(data)
        try:
            if handler.response_streaming:
                await handler.unary_stream(request, context)
            else:
                context.written.append(await handler.unary_unary(request, context))
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            if not leaves:
                raise
        for message in context.written:
            handler.response_serializer(message)
        return context
