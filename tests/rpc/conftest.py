"""Fixtures of the rpc room."""

from collections.abc import AsyncIterator

import pytest

from support.rpc_world import World, open_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A READY server over fakes, and a client."""
    async with open_world() as opened:
        yield opened
