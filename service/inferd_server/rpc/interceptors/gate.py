"""What a server takes in each phase of its life (docs/semantics.md §9)."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from inferd_server.core.errors import server_draining, server_starting
from inferd_server.serving.lifecycle import Lifecycle, Phase

from .call import Call

INFERENCE = "inferd.v1.InferenceService"
OPEN_WHILE_STARTING = frozenset({f"/{INFERENCE}/GetServerInfo"})
CLOSED_WHILE_DRAINING = frozenset(
    {
        f"/{INFERENCE}/Generate",
        f"/{INFERENCE}/StreamGenerate",
        f"/{INFERENCE}/Embed",
        f"/{INFERENCE}/Rerank",
        f"/{INFERENCE}/Tokenize",
        "/inferd.v1.ModelService/LoadModel",
        "/inferd.v1.ModelService/UnloadModel",
    }
)
"""New work and changes. Looking, and cancelling what still runs, stay open."""


def gate(lifecycle: Lifecycle) -> Callable[[Call], AbstractAsyncContextManager[None]]:
    """The layer that refuses calls out of their phase with SERVER_STARTING or SERVER_DRAINING."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        if lifecycle.phase is Phase.STARTING and call.service == INFERENCE and call.method not in OPEN_WHILE_STARTING:
            raise server_starting()
        if lifecycle.phase >= Phase.DRAINING and call.method in CLOSED_WHILE_DRAINING:
            raise server_draining()
        yield

    return layer
