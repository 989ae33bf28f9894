"""Rerank on the wire: what of a message reaches serving, and what of the answer reaches the client."""

from collections.abc import AsyncIterator

import grpc
import pytest

from fakes.registry import FakeRegistry, entry
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd_server.core.embedding import Truncation
from inferd_server.core.errors import queue_full
from inferd_server.core.generation import SchedulingChoices
from inferd_server.core.model import Capability, RerankerFacts
from inferd_server.core.reranking import RerankRequest
from support.rpc_world import World, open_world, server_info
from support.wire import fields_of, reason_of

RERANKER = entry("rank", capabilities=frozenset({Capability.RERANK}), reranker=RerankerFacts(16))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(registry=FakeRegistry(RERANKER, entry("tiny"))) as world:
        yield world


async def failure(world: World, **fields: object) -> grpc.aio.AioRpcError:
    message = pb.RerankRequest(**{"model": "rank", "query": "q", "documents": ["a"], **fields})  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Rerank(message)
    return caught.value


async def test_every_field_reaches_serving_and_the_answer_comes_whole(world: World) -> None:
    message = pb.RerankRequest(
        request_id="r1",
        model="rank",
        query="q",
        documents=["a", "b"],
        top_n=2,
        return_documents=True,
        truncation=pb.TEXT_TRUNCATION_END,
        scheduling=gen.SchedulingOptions(priority=3),
    )
    answer = await world.inference.Rerank(message, timeout=60)
    scheduling = SchedulingChoices(priority=3)
    assert world.rerankings.requests == [RerankRequest("r1", "rank", "q", ("a", "b"), 2, Truncation.END, scheduling)]
    (deadline,) = world.rerankings.deadlines
    assert deadline is not None
    assert (answer.request_id, answer.model.load_generation) == ("r1", 3)
    assert [(each.index, each.score, each.document) for each in answer.results] == [(1, 0.25, "b"), (0, 0, "a")]
    assert (list(answer.truncated_documents), answer.usage.prompt_tokens, answer.preemptions) == ([1], 9, 1)


async def test_what_is_unset_is_the_default_and_documents_stay_with_the_caller(world: World) -> None:
    answer = await world.inference.Rerank(pb.RerankRequest(model="rank", query="q", documents=["a"]))
    assert world.rerankings.requests == [RerankRequest("", "rank", "q", ("a",))]
    assert not answer.results[0].HasField("document")


async def test_its_errors_come_through(world: World) -> None:
    world.rerankings.error = queue_full("rank", 7)
    assert reason_of(await failure(world)) == "QUEUE_FULL"
    world.rerankings.error = ValueError("secret")
    error = await failure(world)
    assert (reason_of(error), "secret" in str(error)) == ("ENGINE_FAILED", False)


async def test_a_long_text_is_counted_in_characters_before_anything_reads_it(world: World) -> None:
    long = "b" * (2**20 + 1)
    assert fields_of(await failure(world, query=long, documents=["a", long])) == ["query", "documents[1]"]
    assert world.rerankings.requests == []


async def test_documents_are_not_sent_back_in_a_message_that_is_too_large() -> None:
    info = server_info(max_message_bytes=200_000)
    async with open_world(registry=FakeRegistry(RERANKER), info=info) as world:
        documents = ["a" * 50_000] * 3
        assert fields_of(await failure(world, documents=documents, return_documents=True)) == ["return_documents"]
        await world.inference.Rerank(pb.RerankRequest(model="rank", query="q", documents=documents))
        assert len(world.rerankings.requests) == 1
