"""Opening a scheduler over a scripted engine, and reading its streams, in tests."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Protocol

from fakes.engine import ScriptedEngine
from inferd_server.core.errors import InferdError
from inferd_server.core.generation import Token
from inferd_server.core.model import Interrupted
from inferd_server.scheduler import Scheduler, Stream


class OpenScheduler(Protocol):
    """The fixture `open_scheduler`: a Scheduler that is closed at the end; settings are EngineSettings' fields."""

    async def __call__(
        self, engine: ScriptedEngine, on_death: Callable[[InferdError], None] = ..., **settings: Any
    ) -> Scheduler: ...


async def read(stream: Stream) -> list[Token]:
    """All tokens of a stream, to its normal end; closes it."""
    tokens: list[Token] = []
    async with aclosing(stream):
        async for some in stream:
            assert some
            tokens.extend(some)
    return tokens


async def read_ids(stream: Stream) -> list[int]:
    """As `read`, the ids alone."""
    return [token.token_id for token in await read(stream)]


async def read_until_error(stream: Stream) -> tuple[list[int], InferdError | Interrupted]:
    """The ids in front of the error, and the error; closes the stream."""
    ids: list[int] = []
    async with aclosing(stream):
        try:
            async for some in stream:
                ids.extend(token.token_id for token in some)
        except (InferdError, Interrupted) as error:
            return ids, error
    raise AssertionError("the stream ended normally")


async def eventually(claim: Callable[[], bool]) -> None:
    """Wait until a claim about another thread holds."""
    async with asyncio.timeout(5):
        while not claim():  # noqa: ASYNC110 - the thread that makes it true has no loop to set an event on
            await asyncio.sleep(0.001)
