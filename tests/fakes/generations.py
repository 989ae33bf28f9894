"""Generations as the rpc room sees it: a script of events for each request."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from inferd_server.core.generation import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Prompt,
    ServedModel,
    Started,
    Timing,
    Usage,
)
from inferd_server.core.observer import UNOBSERVED, GenerationObserver
from inferd_server.serving.callers import Caller

Script = Callable[[GenerationRequest], AsyncIterator[Event]]


def started(request: GenerationRequest) -> Started:
    """The admission of a request."""
    return Started(request.request_id or "made-up", ServedModel("tiny", "r1", 3), prompt_tokens=4)


def finished(completion_tokens: int = 0) -> Finished:
    """A normal end."""
    usage = Usage(prompt_tokens=4, completion_tokens=completion_tokens)
    return Finished(FinishReason.EOS, "", usage, Timing(queue=0.5, total=0.5))


def answer(*pieces: str) -> Script:
    """A script: started, one delta for each piece, finished."""

    async def script(request: GenerationRequest) -> AsyncIterator[Event]:
        yield started(request)
        for count, piece in enumerate(pieces, 1):
            yield Delta(text=piece, completion_tokens=count)
        yield finished(len(pieces))

    return script


def fail(error: BaseException, *, after: int | None = None) -> Script:
    """A script that raises: at once (`after` None), or after the start and so many deltas."""

    async def script(request: GenerationRequest) -> AsyncIterator[Event]:
        if after is not None:
            yield started(request)
            for count in range(after):
                yield Delta(text="x", completion_tokens=count + 1)
        raise error

    return script


async def hang(request: GenerationRequest) -> AsyncIterator[Event]:
    """A script: started, then nothing for ever."""
    yield started(request)
    await asyncio.Event().wait()


async def flood(request: GenerationRequest) -> AsyncIterator[Event]:
    """A script: started, then deltas of 64 KiB without end."""
    yield started(request)
    count = 0
    while True:
        count += 1
        yield Delta(text="x" * 65_536, completion_tokens=count)
        await asyncio.sleep(0)


class FakeGenerations:
    """Plays `script` for each request.

    Attributes:
        requests: every request that came.
        deadlines: theirs.
        open: how many streams have not ended; `ends` counts those that have, `clean_ends` those of them whose
            `finally` was not interrupted.
        cleanup_seconds: how long the end of a stream takes.
    """

    def __init__(self) -> None:
        self.script: Script = answer("Hello", " world")
        self.requests: list[GenerationRequest] = []
        self.deadlines: list[float | None] = []
        self.open = 0
        self.ends = 0
        self.clean_ends = 0
        self.cleanup_seconds = 0.0
        self.known_ids: set[str] = set()
        self.tokenized: list[tuple[str, Prompt]] = []

    async def stream(
        self,
        request: GenerationRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver = UNOBSERVED,
    ) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.deadlines.append(deadline)
        self.open += 1
        try:
            async for event in self.script(request):
                yield event
        finally:
            try:
                if self.cleanup_seconds:
                    await asyncio.sleep(self.cleanup_seconds)
                self.clean_ends += 1
            finally:  # a client may leave during the end itself
                self.open -= 1
                self.ends += 1

    def cancel(self, request_id: str, caller_id: str = "") -> bool:
        return request_id in self.known_ids

    async def tokenize(self, model: str, prompt: Prompt) -> tuple[list[int], int]:
        self.tokenized.append((model, prompt))
        return [1, 2, 3], 128
