"""Any order of submits, reads, closes, interruptions and failures: the promises of the scheduler hold."""

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.engine import ScriptedEngine, ScriptedLoading, expected_ids, opens, request
from inferd_server.core.errors import InferdError
from inferd_server.core.generation import DecodeRequest
from inferd_server.core.model import EngineSettings, Interrupted
from inferd_server.scheduler import Scheduler, Stream
from support.streams import eventually

MAX_ROWS = 3

submits = st.tuples(
    st.just("submit"), st.integers(1, 30), st.integers(-2, 2), st.sampled_from((0.0, 0.002, 0.01, 60.0))
)
operations = st.one_of(
    submits,
    submits,
    submits,
    st.tuples(st.just("close"), st.integers(0, 9)),
    st.tuples(st.just("pause"), st.integers(0, 4)),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("fail a step")),
    st.tuples(st.just("fail an insert")),
)


class Reader:
    """One submitted request, the task that reads it, and what came of it."""

    def __init__(self, decode: DecodeRequest, stream: Stream) -> None:
        self.decode = decode
        self.stream = stream
        self.ids: list[int] = []
        self.error: Exception | None = None
        self.is_closed = False
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            await self.stream.admitted()
            async for tokens in self.stream:
                self.ids += [token.token_id for token in tokens]
        except (Interrupted, InferdError, RuntimeError) as error:
            self.error = error

    async def close(self) -> None:
        self.is_closed = True
        await self.stream.aclose()

    def check(self, emitted: list[int]) -> None:
        """What arrived is what was emitted: all of it, unless the reader closed the stream."""
        assert self.ids == emitted[: len(self.ids)]
        if not self.is_closed:
            assert self.ids == emitted
            assert self.error is not None or emitted == expected_ids(self.decode)


async def weather(plan: list[tuple[str, ...]]) -> None:
    engine = ScriptedEngine(max_rows=MAX_ROWS, prefill_steps=1)
    scheduler = await Scheduler.open(
        EngineSettings("m", Path("/nowhere")), ScriptedLoading(), opens(engine), lambda error: None
    )
    readers: list[Reader] = []
    for name, *arguments in plan:
        match name:
            case "submit":
                max_tokens, priority, coalesce_seconds = arguments
                decode = request(3 + len(readers), max_tokens=max_tokens)
                try:
                    stream = scheduler.submit(decode, priority=priority, coalesce_seconds=coalesce_seconds)
                except (Interrupted, InferdError):  # the latter after three failed steps in a row
                    continue
                readers.append(Reader(decode, stream))
            case "close" if arguments[0] < len(readers):
                await readers[arguments[0]].close()
            case "pause":
                await asyncio.sleep(arguments[0] / 1000)
            case "interrupt":
                scheduler.interrupt("rival")
            case "resume":
                scheduler.resume()
            case "fail a step" if not engine.step_errors:
                engine.step_errors.append(RuntimeError("boom"))
            case "fail an insert" if not engine.insert_errors:
                engine.insert_errors.append(RuntimeError("boom"))
    async with asyncio.timeout(10):
        await asyncio.gather(*(reader.task for reader in readers))
    await eventually(lambda: not engine.rows)
    assert (scheduler.statistics().running, scheduler.statistics().waiting) == (0, 0)
    await scheduler.close()
    assert engine.most_rows <= MAX_ROWS
    for reader in readers:
        reader.check(engine.emitted.get(reader.decode.prompt_ids, []))


@settings(max_examples=150, deadline=None)
@given(st.lists(operations, max_size=25))
def test_every_stream_is_answered_with_exactly_what_was_emitted(plan: list[tuple[str, ...]]) -> None:
    asyncio.run(weather(plan))
