"""Embed on the wire: what of a message reaches serving, and what of the answer reaches the client."""

from collections.abc import AsyncIterator

import grpc
import pytest

from fakes.registry import FakeRegistry, entry
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd_server.core.embedding import EmbedRequest, Truncation
from inferd_server.core.errors import queue_full
from inferd_server.core.generation import SchedulingChoices
from inferd_server.core.model import Capability, EmbedderFacts
from support.rpc_world import World, open_world
from support.wire import fields_of, reason_of

FACTS = EmbedderFacts(width=8, max_tokens=16, prompts={"query": "q: "})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    embedder = entry("emb", capabilities=frozenset({Capability.EMBED}), embedder=FACTS)
    async with open_world(registry=FakeRegistry(embedder, entry("tiny"))) as world:
        yield world


async def test_every_field_reaches_serving_and_the_answer_comes_whole(world: World) -> None:
    message = pb.EmbedRequest(
        request_id="r1",
        model="emb",
        texts=["a", "b"],
        normalize=False,
        truncation=pb.TEXT_TRUNCATION_END,
        dimensions=2,
        prompt_name="query",
        scheduling=gen.SchedulingOptions(priority=3),
    )
    answer = await world.inference.Embed(message, timeout=60)
    scheduling = SchedulingChoices(priority=3)
    assert world.embeddings.requests == [
        EmbedRequest("r1", "emb", ("a", "b"), False, Truncation.END, 2, "query", scheduling)
    ]
    (deadline,) = world.embeddings.deadlines
    assert deadline is not None
    assert (answer.request_id, answer.model.load_generation, answer.dimensions) == ("r1", 3, 2)
    assert list(answer.vectors_f32le) == [bytes(8), bytes(8)]
    assert (list(answer.truncated_texts), answer.usage.prompt_tokens, answer.preemptions) == ([1], 9, 1)


async def test_what_is_unset_is_the_models_default(world: World) -> None:
    await world.inference.Embed(pb.EmbedRequest(model="emb", texts=["a"]))
    assert world.embeddings.requests == [EmbedRequest("", "emb", ("a",))]


async def test_its_errors_come_through(world: World) -> None:
    world.embeddings.error = queue_full("emb", 7)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Embed(pb.EmbedRequest(model="emb", texts=["a"]))
    assert reason_of(caught.value) == "QUEUE_FULL"
    world.embeddings.error = ValueError("secret")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Embed(pb.EmbedRequest(model="emb", texts=["a"]))
    assert (reason_of(caught.value), "secret" in str(caught.value)) == ("ENGINE_FAILED", False)


async def test_a_long_text_is_counted_in_characters_before_anything_reads_it(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Embed(pb.EmbedRequest(model="emb", texts=["a", "b" * (2**20 + 1)]))
    assert fields_of(caught.value) == ["texts[1]"]
    assert world.embeddings.requests == []
