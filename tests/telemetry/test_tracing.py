"""Tracing over a socket: what is sampled, what of a prompt is recorded, and clocks that jump."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.collector import Collector, collecting, facts
from fakes.generations import fail
from fakes.registry import FakeRegistry, entry
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd_server.core.errors import wait_timeout
from inferd_server.core.model import RerankerFacts
from inferd_server.telemetry.attributes import MAX_PROMPT_CHARACTERS
from inferd_server.telemetry.spans import Moments
from inferd_server.telemetry.tracing import Tracing
from support.calls import chat
from support.rpc_world import World, open_world

SAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

RERANKER = entry("rank", reranker=RerankerFacts(16))


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@asynccontextmanager
async def traced(collector: Collector, **options: Any) -> AsyncIterator[World]:
    """A server whose spans have arrived at the collector when the block is left."""
    async with (
        Tracing(collector.address, version="1", insecure=True, **options) as tracing,
        open_world(tracer=tracing, registry=FakeRegistry(entry("tiny"), RERANKER)) as world,
    ):
        yield world


async def test_the_ratio_holds_where_the_caller_has_not_decided(collector: Collector) -> None:
    async with traced(collector, sample_ratio=0.0) as world:
        await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
        await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"), metadata=[SAMPLED])
    [root, *children] = sorted(collector.spans, key=lambda span: span.kind, reverse=True)
    assert root.parent_span_id.hex() == SAMPLED[1].split("-")[2]
    assert [child.name for child in children] == ["queue"]  # the fake tells no more


async def test_prompts_are_recorded_only_where_that_is_asked_for(collector: Collector) -> None:
    message = pb.GenerateRequest(model="tiny", chat=chat(("system", "be kind"), ("user", "sesame")))
    async with traced(collector) as world:
        await world.inference.Generate(message)
    assert "sesame" not in str(collector.requests)
    async with traced(collector, record_prompts=True) as world:
        await world.inference.Generate(message)
    root = next(span for span in collector.spans if "gen_ai.input.messages" in facts(span))
    assert json.loads(facts(root)["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be kind"}]},
        {"role": "user", "parts": [{"type": "text", "content": "sesame"}]},
    ]
    assert facts(root)["gen_ai.operation.name"] == "chat"


async def test_a_long_prompt_is_recorded_in_part_and_stays_readable(collector: Collector) -> None:
    async with traced(collector, record_prompts=True) as world:
        texts = [gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(text=f"{i}" * 20_000)]) for i in range(9)]
        await world.inference.Generate(pb.GenerateRequest(model="tiny", chat=gen.ChatInput(messages=texts)))
        await world.inference.Generate(pb.GenerateRequest(model="tiny", tokens=gen.TokenInput(ids=[1, 2])))
    told = [facts(span) for span in collector.spans]
    recorded = [said["gen_ai.input.messages"] for said in told if "gen_ai.input.messages" in said]
    [messages] = map(json.loads, recorded)
    assert sum(len(message["parts"][0]["content"]) for message in messages) <= MAX_PROMPT_CHARACTERS
    assert len(messages) == 2


async def test_a_query_and_its_documents_are_recorded_as_a_prompt_is(collector: Collector) -> None:
    message = pb.RerankRequest(model="rank", query="sesame", documents=["open", "shut"])
    async with traced(collector) as world:
        await world.inference.Rerank(message)
    assert "sesame" not in str(collector.requests)
    async with traced(collector, record_prompts=True) as world:
        await world.inference.Rerank(message)
    said = next(facts(span) for span in collector.spans if "gen_ai.input.messages" in facts(span))
    messages = json.loads(said["gen_ai.input.messages"])
    assert [message["parts"][0]["content"] for message in messages] == ["sesame", "open", "shut"]
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("rerank", "rank")


async def test_a_refusal_ends_its_spans(collector: Collector) -> None:
    async with traced(collector) as world:
        world.generations.script = fail(wait_timeout("tiny", 1.0, 3))
        with pytest.raises(Exception, match="tiny"):
            await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
    assert {span.name: facts(span).get("error.type") for span in collector.spans} == {
        "inferd.v1.InferenceService/Generate": "WAIT_TIMEOUT",
        "queue": None,
    }


async def test_requests_at_a_time_do_not_mix(collector: Collector) -> None:
    async with traced(collector) as world:
        await asyncio.gather(
            *(world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x")) for _ in range(50))
        )
    roots = [span for span in collector.spans if span.kind == 2]
    assert len({root.trace_id for root in roots}) == len(roots) == 50
    assert all(len(collector.children(root)) == 1 for root in roots)


def test_a_wall_clock_that_is_set_back_bends_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    moments = Moments(lambda: now[0])
    began = moments.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    now[0] += 2.5
    assert moments.now() - began == 2_500_000_000
