"""One line for each RPC that ended: what, how, how long. Never a prompt, never an output."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from inferd_server.core.model import Clock

from .account import Account
from .call import Call

logger = logging.getLogger("inferd.access")

QUIET_SERVICES = frozenset(
    {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
)
"""Probes come every few seconds: DEBUG."""


def access_log(clock: Clock = time.monotonic) -> Callable[[Call], AbstractAsyncContextManager[None]]:
    """The layer that writes the line to the logger `inferd.access`, with its parts in `extra`."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        try:
            yield
        finally:
            level = logging.DEBUG if call.service in QUIET_SERVICES else logging.INFO
            logger.log(level, "%s %s", call.method, call.code.name, extra=_parts(call, clock() - call.started))

    return layer


def _parts(call: Call, seconds: float) -> dict[str, object]:
    parts: dict[str, object] = {
        "method": call.method,
        "code": call.code.name,
        "reason": call.reason,
        "seconds": round(seconds, 6),
        "request_id": call.request_id,
        "model": call.account.model or call.model,
        "key_id": call.key_id,
        "peer": call.peer,
    }
    if call.client:
        parts["client"] = call.client
    if call.trace.trace_id:
        parts["trace_id"] = call.trace.trace_id
    return {**parts, **_generation_parts(call.account)}


def _generation_parts(account: Account) -> dict[str, object]:
    """Of a generation request that had a row."""
    usage, timing = account.usage, account.timing
    if timing is None:
        return {}
    first = account.first_token_seconds
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_prompt_tokens": usage.cached_prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "finish_reason": account.finish_reason,
        "preemptions": account.preemptions,
        "queue_seconds": round(timing.queue, 6),
        "load_seconds": round(timing.load, 6),
        "first_token_seconds": None if first is None else round(first, 6),
    }
