"""One line for each RPC that ended: what, how, how long. Never a prompt, never an output."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from inferd_server.core.model import Clock

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
    return {
        "method": call.method,
        "code": call.code.name,
        "reason": call.reason,
        "seconds": round(seconds, 6),
        "request_id": call.request_id,
        "model": call.model,
    }
