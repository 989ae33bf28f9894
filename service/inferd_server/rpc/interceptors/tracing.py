"""Opens a trace for each RPC, as its caller's metadata asks, and closes it with how the RPC ended."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from inferd_server.core.observer import CallEnd, Tracer

from .call import Call, Context

CARRIED = ("traceparent", "tracestate")


def tracing(tracer: Tracer) -> Callable[[Call], AbstractAsyncContextManager[None]]:
    """The layer that does so."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        call.trace = tracer.call(call.method, _carried(call.context))
        try:
            yield
        finally:
            call.trace.finish(_end(call))

    return layer


def _carried(context: Context) -> dict[str, str]:
    """What the metadata says of a trace."""
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in metadata if key in CARRIED and isinstance(value, str)}


def _end(call: Call) -> CallEnd:
    account = call.account
    return CallEnd(
        model=account.model or call.model,
        request_id=call.request_id,
        peer=call.peer,
        code=call.code.name,
        reason=call.reason,
        load_generation=account.load_generation,
        usage=account.usage,
        finish_reason=account.finish_reason,
        preemptions=account.preemptions,
    )
