"""Tells an observer of each RPC that ended."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from inferd_server.core.model import Clock
from inferd_server.core.observer import Observer

from .call import Call


def observing(observer: Observer, clock: Clock = time.monotonic) -> Callable[[Call], AbstractAsyncContextManager[None]]:
    """The layer that tells it."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        try:
            yield
        finally:
            seconds = clock() - call.started
            observer.call_ended(call.method, call.model_as_asked, call.code.name, call.reason, seconds)

    return layer
