"""Fixtures of the rpc room."""

from collections.abc import AsyncIterator

import pytest

from support.no_blocking import no_blocking
from support.rpc_world import World, open_world

__all__ = ["no_blocking", "world"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A READY server over fakes, and a client."""
    async with open_world() as opened:
        yield opened
