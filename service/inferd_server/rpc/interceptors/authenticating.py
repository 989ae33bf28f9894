"""Who asks, and whether they may call this: `authorization: Bearer KEY` in the metadata, where keys are needed.

Health never needs a key (probes have none); with a valid one it also tells of the models that the key may see.
Reflection and GetServerInfo need any valid key.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc

from inferd_server.core.access import MethodGroup
from inferd_server.core.errors import InferdError, credentials_invalid, credentials_missing, method_denied
from inferd_server.registry.registry import Registry
from inferd_server.rpc.visible import Visible
from inferd_server.serving.callers import Caller, Callers

from .call import Call

HEALTH = "grpc.health.v1.Health"
HEADER = "authorization"
SCHEME = "bearer"
MAX_HEADER_CHARACTERS = 4096

Metadata = Iterable[tuple[str, str | bytes]]

_INFERENCE = "/inferd.v1.InferenceService/"
_MODELS = "/inferd.v1.ModelService/"
GROUPS: dict[str, MethodGroup | None] = {
    **{
        _INFERENCE + name: MethodGroup.GENERATE
        for name in ("Generate", "StreamGenerate", "Embed", "Rerank", "Tokenize", "CancelGeneration")
    },
    _INFERENCE + "GetServerInfo": None,
    **{_MODELS + name: MethodGroup.OBSERVE for name in ("ListModels", "GetModel", "WatchModels")},
    **{_MODELS + name: MethodGroup.ADMIN for name in ("LoadModel", "UnloadModel")},
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": None,
}
"""What each method needs among a key's methods; None: any key will do. A method that is missing here is denied."""


def authenticating(callers: Callers, registry: Registry) -> Callable[[Call], AbstractAsyncContextManager[None]]:
    """The layer that sets `call.caller`, or refuses with CREDENTIALS_MISSING, CREDENTIALS_INVALID or METHOD_DENIED.

    Errors that pass it outwards name no model that the caller may not see.
    """

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        caller = call.caller = _caller(call, callers)
        if callers.needs_key and call.service != HEALTH:
            _check_method(call.method, caller)
        try:
            yield
        except InferdError as error:
            raise error.told_to(Visible(registry, caller.access).may_name) from None

    return layer


def known(callers: Callers) -> Callable[[grpc.HandlerCallDetails], bool]:
    """Whether a call's message is read: who shows no valid key where one is needed shall not fill the memory."""

    def is_known(details: grpc.HandlerCallDetails) -> bool:
        if not callers.needs_key or details.method.startswith(f"/{HEALTH}/"):
            return True
        try:
            callers.authenticate(_key_in(details.invocation_metadata))
        except InferdError:
            return False
        return True

    return is_known


def _caller(call: Call, callers: Callers) -> Caller:
    if not callers.needs_key:
        return callers.anonymous
    try:
        return callers.authenticate(_key_in(call.context.invocation_metadata()))
    except InferdError:
        if call.service == HEALTH:
            return callers.anonymous
        raise


def _key_in(metadata: Metadata | None) -> str:
    """The key of exactly one `Bearer KEY` (the scheme in any case, as HTTP has it)."""
    values = [value for name, value in metadata or () if name == HEADER]
    if not values:
        raise credentials_missing()
    scheme, _, key = str(values[0])[:MAX_HEADER_CHARACTERS].partition(" ")
    if len(values) > 1 or scheme.lower() != SCHEME or not key:
        raise credentials_invalid()
    return key


def _check_method(method: str, caller: Caller) -> None:
    if method not in GROUPS:
        raise method_denied(method, "another version of this server")
    group = GROUPS[method]
    if group is not None and group not in caller.access.methods:
        raise method_denied(method, group)
