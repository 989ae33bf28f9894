"""The wall between our errors and gRPC: every outcome of a handler becomes a status, once."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from inferd_server.core.errors import InferdError, internal_error
from inferd_server.rpc.status import CODES, to_grpc_status

from .call import Call

logger = logging.getLogger("inferd.rpc")


@asynccontextmanager
async def edge(call: Call) -> AsyncIterator[None]:
    """Answer InferdError with its status and anything unexpected without its text; cancellation passes."""
    try:
        yield
    except asyncio.CancelledError:
        ending = call.take_ending()
        if ending is None:
            call.code = _cancellation_code(call)
            raise
        await _abort(call, ending)
    except grpc.aio.AbortError:
        call.code = call.context.code()
        raise
    except InferdError as error:
        await _abort(call, error)
    except Exception:  # the rpc edge is one of the three walls
        logger.exception(
            "unexpected exception in %s", call.method, extra={"request_id": call.request_id, "model": call.model}
        )
        await _abort(call, internal_error())
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:  # noqa: BLE001 - Rust's (tokenizers); grpc would leave the RPC open for ever
        frames = "".join(traceback.format_tb(panic.__traceback__))  # its text may quote the text that it broke on
        logger.error(
            "panic in %s", call.method, extra={"request_id": call.request_id, "model": call.model, "stack": frames}
        )
        await _abort(call, internal_error())


async def _abort(call: Call, error: InferdError) -> None:
    call.is_answered = True
    call.code, call.reason = CODES[error.reason], error.reason.value
    call.request_id = call.request_id or error.facts.get("request_id", "")
    told = error.with_facts(**{**call.facts, **error.facts})
    await call.context.abort_with_status(to_grpc_status(told))


def _cancellation_code(call: Call) -> grpc.StatusCode:
    """What the client sees: its deadline's end, or its own cancel."""
    remaining: float | None = call.context.time_remaining()
    return grpc.StatusCode.DEADLINE_EXCEEDED if remaining is not None and remaining <= 0 else grpc.StatusCode.CANCELLED
