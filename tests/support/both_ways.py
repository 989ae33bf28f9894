"""Both clients behind one async face, so that one test proves them alike."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from inferd_client import AsyncClient, Client


class BothWays:
    """Calls a method of the client under test; a blocking one in a thread."""

    def __init__(self, client: AsyncClient | Client) -> None:
        self.client = client

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        if isinstance(self.client, AsyncClient):
            return await getattr(self.client, method)(*args, **options)
        return await asyncio.to_thread(getattr(self.client, method), *args, **options)

    async def read(self, method: str, *args: Any, **options: Any) -> tuple[list[Any], Any]:
        """All events of a stream, and the stream."""
        if isinstance(self.client, AsyncClient):
            async with getattr(self.client, method)(*args, **options) as stream:
                return [event async for event in stream], stream
        return await asyncio.to_thread(self._read, method, *args, **options)

    def _read(self, method: str, *args: Any, **options: Any) -> tuple[list[Any], Any]:
        with getattr(self.client, method)(*args, **options) as stream:
            return list(stream), stream


@asynccontextmanager
async def connected(kind: str, address: str, **options: Any) -> AsyncIterator[BothWays]:
    if kind == "async":
        async with AsyncClient(address, **options) as client:
            yield BothWays(client)
    else:
        with Client(address, **options) as client:
            yield BothWays(client)
