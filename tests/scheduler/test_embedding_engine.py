"""The scheduler over the real embedding engine: memory, interruption and departure, as for models that make tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fakes.engine import ScriptedLoading
from inferd_server.core.embedding import EncodeRequest
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import EngineKind, EngineSettings, Interrupted
from inferd_server.engine.device import end_thread
from inferd_server.scheduler import Scheduler
from inferd_server.scheduler.memory import WorkMemory
from support import tiny_embedder
from support.streams import eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_embedder.build(tmp_path_factory.mktemp("embedder") / "emb")


@pytest.fixture
def memory() -> WorkMemory:
    return WorkMemory()


@pytest.fixture
async def scheduler(folder: Path, memory: WorkMemory) -> AsyncIterator[Scheduler]:
    from inferd_server.engine.embedding import open_embedding_engine

    def on_death(error: Exception) -> None:
        raise AssertionError(error)

    settings = EngineSettings("emb", folder, EngineKind.EMBEDDING, prefill_step_size=128)
    opened = await Scheduler.open(
        settings, ScriptedLoading(), open_embedding_engine, on_death, end_thread=end_thread, memory=memory
    )
    yield opened
    await opened.close()


def request(count: int, tokens: int = 40) -> EncodeRequest:
    return EncodeRequest(tuple((i, (2, *[7 + i % 20] * (tokens - 2), 3)) for i in range(count)))


async def read(stream: Any) -> dict[int, bytes]:
    vectors: dict[int, bytes] = {}
    async with aclosing(stream):
        async for pieces in stream:
            for piece in pieces:
                vectors.update(piece.vectors)
    return vectors


async def test_every_vector_comes_once(scheduler: Scheduler) -> None:
    streams = [scheduler.submit(request(count), coalesce_seconds=0) for count in (1, 9, 30)]
    several = await asyncio.gather(*map(read, streams))
    assert [sorted(vectors) for vectors in several] == [list(range(count)) for count in (1, 9, 30)]
    assert scheduler.statistics().running == 0


async def test_an_interrupted_request_has_all_vectors_that_were_made_and_the_rest_can_be_made_later(
    scheduler: Scheduler,
) -> None:
    whole = await read(scheduler.submit(request(60), coalesce_seconds=0))
    vectors: dict[int, bytes] = {}

    async def read_and_interrupt() -> None:
        async with aclosing(scheduler.submit(request(60), coalesce_seconds=0)) as stream:
            async for pieces in stream:
                scheduler.interrupt("rival")
                for piece in pieces:
                    vectors.update(piece.vectors)

    with pytest.raises(Interrupted):
        await read_and_interrupt()
    assert 0 < len(vectors) < 60
    scheduler.resume()
    left = EncodeRequest(tuple(text for text in request(60).texts if text[0] not in vectors))
    vectors |= await read(scheduler.submit(left, coalesce_seconds=0))
    assert vectors.keys() == whole.keys()


async def test_a_reader_that_leaves_frees_its_row_and_memory(scheduler: Scheduler, memory: WorkMemory) -> None:
    async with aclosing(scheduler.submit(request(500), coalesce_seconds=0)) as stream:
        await anext(stream)
        assert memory.promised_nbytes > 0
    await eventually(lambda: scheduler.statistics().running == 0 and memory.promised_nbytes == 0)


async def test_what_never_fits_is_refused_and_what_fits_later_waits(scheduler: Scheduler, memory: WorkMemory) -> None:
    footprint = scheduler._worker.footprint
    small, large = request(1, 10), request(50, 60)
    one = footprint.peak_nbytes(1, small.total_tokens, small.context_tokens)
    memory.limit(one)
    with pytest.raises(InferdError) as caught:
        scheduler.submit(large)
    assert caught.value.reason is Reason.OUT_OF_MEMORY
    first, second = scheduler.submit(small, coalesce_seconds=0), scheduler.submit(small, coalesce_seconds=0)
    assert (first.is_admitted, second.is_admitted) == (True, False)
    assert len(await read(first)) == len(await read(second)) == 1
