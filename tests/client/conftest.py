"""A scripted server, and both clients connected to it."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fakes import wire_server
from support.both_ways import BothWays, connected


@pytest.fixture
def server() -> Iterator[wire_server.WireServer]:
    with wire_server.running() as running:
        yield running


@pytest.fixture(params=["async", "sync"])
async def client(request: pytest.FixtureRequest, server: wire_server.WireServer) -> AsyncIterator[BothWays]:
    async with connected(request.param, server.address) as both:
        yield both


@pytest.fixture(params=["async", "sync"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Connects either client to an address."""
    return lambda address, **options: connected(request.param, address, **options)
