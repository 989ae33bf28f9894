"""Who calls, as the client's certificate says."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from inferd_server.core.errors import echo

from .call import Call

NAMES = ("x509_subject_alternative_name", "x509_common_name")
"""Properties of a connection whose client was authenticated, the best first."""


@asynccontextmanager
async def identify(call: Call) -> AsyncIterator[None]:
    """Note the name of the client's certificate; for servers that demand one."""
    properties = call.context.auth_context()
    call.client = next((echo(name) for key in NAMES for name in _texts(properties.get(key, ()))), "")
    yield


def _texts(values: Iterable[bytes]) -> Iterable[str]:
    return (value.decode(errors="replace") for value in values if value)
