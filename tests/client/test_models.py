"""The registry's calls, and the small ones, through both clients."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fakes import wire_server
from fakes.wire_server import FOREVER, Refusal, WireServer
from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2
from inferd_client import (
    AsyncClient,
    Changed,
    EngineFailed,
    InferdError,
    InvalidParameter,
    ModelNotFound,
    Removed,
    Snapshot,
)
from support.both_ways import BothWays

BUDGET = model_service_pb2.MemoryBudget(limit_bytes=100, used_bytes=60)
Watched = model_service_pb2.WatchModelsResponse


async def test_models_reads_every_page(server: WireServer, client: BothWays) -> None:
    page = model_service_pb2.ListModelsResponse
    server.script(
        "ListModels",
        page(models=[wire_server.model("a")], next_page_token="t", memory=BUDGET),
        page(models=[wire_server.model("b", "FAILED")], memory=BUDGET),
    )
    listed = await client.call("models", states=["loaded", "failed"])
    assert [(model.name, model.state) for model in listed] == [("a", "loaded"), ("b", "failed")]
    assert (len(listed), listed.memory.limit_bytes) == (2, 100)
    first, second = [call.request for call in server.calls]
    assert (first.page_token, second.page_token) == ("", "t")
    assert first.states == second.states == [4, 8]


async def test_a_model_has_all_its_facts(server: WireServer, client: BothWays) -> None:
    error = model_service_pb2.ModelError(reason="MODEL_CORRUPT", message="bad", time=Timestamp(seconds=7))
    sent = wire_server.model(
        "a",
        "FAILED",
        aliases=["x"],
        capabilities=[model_service_pb2.MODEL_CAPABILITY_CHAT],
        context_length=2048,
        state_time=Timestamp(seconds=5),
        last_error=error,
        memory=model_service_pb2.ModelMemory(estimated_bytes=9),
        isolation=model_service_pb2.MODEL_ISOLATION_THREAD,
    )
    server.script("GetModel", model_service_pb2.GetModelResponse(model=sent))
    model = await client.call("model", "x")
    assert (model.aliases, model.capabilities, model.context_length) == (("x",), ("chat",), 2048)
    assert (model.state, model.state_time) == ("failed", datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC))
    assert (model.last_error.reason, model.memory.estimated_bytes) == ("MODEL_CORRUPT", 9)
    assert (model.last_used_time, model.isolation) == (None, "thread")


async def test_a_state_of_a_newer_server_is_told_as_its_number(server: WireServer, client: BothWays) -> None:
    sent = model_service_pb2.Model(name="a")
    sent.MergeFromString(b"\x40\x63")  # field 8, state = 99
    server.script("GetModel", model_service_pb2.GetModelResponse(model=sent))
    assert (await client.call("model", "a")).state == "99"


async def test_a_load_says_how_to_make_room_and_what_came_of_it(server: WireServer, client: BothWays) -> None:
    server.script(
        "LoadModel",
        model_service_pb2.LoadModelResponse(
            model=wire_server.model("a"), evicted_models=["b"], load_time=Duration(seconds=2), memory=BUDGET, fits=True
        ),
    )
    loaded = await client.call("load", "a", pin=False, reload=True, strategy="wait_then_fail", wait_timeout=1.5)
    assert (loaded.model.name, loaded.evicted_models, loaded.load_seconds) == ("a", ("b",), 2.0)
    request = server.calls[0].request
    assert (request.name, request.pin, request.HasField("pin"), request.reload) == ("a", False, True, True)
    assert request.contention.strategy == generation_pb2.CONTENTION_STRATEGY_WAIT_THEN_FAIL
    assert request.contention.wait_timeout.ToMilliseconds() == 1500
    assert not request.contention.HasField("preempt_after")


async def test_a_resident_model_has_no_load_time(server: WireServer, client: BothWays) -> None:
    server.script("LoadModel", model_service_pb2.LoadModelResponse(model=wire_server.model("a")))
    assert (await client.call("load", "a")).load_seconds is None
    assert not server.calls[0].request.HasField("contention")


async def test_an_unload_tells_the_bytes_it_gave_back(server: WireServer, client: BothWays) -> None:
    server.script(
        "UnloadModel", model_service_pb2.UnloadModelResponse(model=wire_server.model("a", "UNLOADED"), freed_bytes=5)
    )
    unloaded = await client.call("unload", "a", mode="if_idle", drain_timeout=3)
    assert (unloaded.model.state, unloaded.freed_bytes) == ("unloaded", 5)
    request = server.calls[0].request
    assert (request.mode, request.drain_timeout.seconds) == (model_service_pb2.UNLOAD_MODE_IF_IDLE, 3)


async def test_a_watch_is_a_snapshot_then_changes_without_heartbeats(server: WireServer, client: BothWays) -> None:
    server.script(
        "WatchModels",
        [
            Watched(snapshot=Watched.Snapshot(models=[wire_server.model("a")], memory=BUDGET)),
            Watched(heartbeat=Watched.Heartbeat()),
            Watched(changed=wire_server.model("a", "UNLOADING")),
            Watched(removed_name="a"),
        ],
    )
    events, _ = await client.read("watch", "a", "b")
    assert [type(event) for event in events] == [Snapshot, Changed, Removed]
    assert list(server.calls[0].request.names) == ["a", "b"]


async def test_leaving_a_watch_cancels_it_on_the_server(server: WireServer) -> None:
    server.script("WatchModels", [Watched(snapshot=Watched.Snapshot()), FOREVER])
    async with AsyncClient(server.address) as client:
        async with client.watch() as events:
            await anext(events)
        assert await asyncio.to_thread(server.calls[0].ended.wait, 10)


async def test_embeddings_are_float32_vectors(server: WireServer, client: BothWays) -> None:
    server.script(
        "Embed",
        inference_service_pb2.EmbedResponse(
            dimensions=2, vectors_f32le=[b"\0\0\x80\x3f\0\0\0\xc0", b"\0" * 8], truncated_texts=[1], preemptions=2
        ),
    )
    options = {"truncation": "end", "dimensions": 2, "prompt_name": "query", "request_id": "r1"}
    embedding = await client.call("embed", "tiny", ["a", "b"], normalize=True, priority=3, **options)
    assert (embedding.truncated_texts, embedding.preemptions) == ((1,), 2)
    assert [list(vector) for vector in embedding.vectors] == [[1.0, -2.0], [0.0, 0.0]]
    request = server.calls[0].request
    assert (list(request.texts), request.normalize, request.scheduling.priority) == (["a", "b"], True, 3)
    assert request.truncation == inference_service_pb2.TEXT_TRUNCATION_END
    assert (request.dimensions, request.prompt_name, request.request_id) == (2, "query", "r1")


@pytest.mark.parametrize(
    ("texts", "options", "error"),
    [
        ("one text", {}, TypeError),
        (["a"], {"truncation": "start"}, InvalidParameter),
        (["a"], {"dimensions": -1}, InvalidParameter),
        (["a"], {"temperature": 1.0}, TypeError),
    ],
)
async def test_embed_refuses_what_the_contract_has_not(
    server: WireServer, client: BothWays, texts: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(options), "texts")):
        await client.call("embed", "tiny", texts, **options)
    assert server.calls == []


async def test_documents_come_back_in_order_with_their_texts(server: WireServer, client: BothWays) -> None:
    best = [inference_service_pb2.RerankResult(index=1, score=2.5), inference_service_pb2.RerankResult(score=-1)]
    server.script("Rerank", inference_service_pb2.RerankResponse(results=best, truncated_documents=[1], preemptions=2))
    options = {"top_n": 2, "truncation": "end", "request_id": "r1", "priority": 3}
    reranking = await client.call("rerank", "tiny", "q", ["a", "b"], **options)
    assert [(each.index, each.score, each.document) for each in reranking.results] == [(1, 2.5, "b"), (0, -1, "a")]
    assert (reranking.truncated_documents, reranking.preemptions) == ((1,), 2)
    request = server.calls[0].request
    assert (request.query, list(request.documents), request.top_n) == ("q", ["a", "b"], 2)
    assert (request.truncation, request.request_id, request.scheduling.priority) == (2, "r1", 3)


async def test_a_result_for_no_document_is_an_unreadable_answer(server: WireServer, client: BothWays) -> None:
    best = [inference_service_pb2.RerankResult(index=2, score=2.5)]
    server.script("Rerank", inference_service_pb2.RerankResponse(results=best))
    with pytest.raises(EngineFailed, match="a result for document 2 of 2"):
        await client.call("rerank", "tiny", "q", ["a", "b"])


async def test_rerank_refuses_one_text_as_documents(server: WireServer, client: BothWays) -> None:
    with pytest.raises(TypeError, match="documents"):
        await client.call("rerank", "tiny", "q", "one text")
    assert server.calls == []


async def test_tokens_are_counted(server: WireServer, client: BothWays) -> None:
    server.script("Tokenize", inference_service_pb2.TokenizeResponse(count=2, token_ids=[4, 5], context_length=99))
    tokens = await client.call("tokenize", "tiny", messages=[("user", "hi")], return_ids=True)
    assert (tokens.count, tokens.token_ids, tokens.context_length) == (2, (4, 5), 99)
    assert server.calls[0].request.WhichOneof("input") == "chat"


async def test_a_request_is_cancelled_by_its_id(server: WireServer, client: BothWays) -> None:
    server.script("CancelGeneration", inference_service_pb2.CancelGenerationResponse(cancelled=True))
    assert await client.call("cancel", "r1") is True
    assert server.calls[0].request.request_id == "r1"


async def test_the_server_tells_about_itself(server: WireServer, client: BothWays) -> None:
    policy = generation_pb2.ContentionPolicy(strategy=2, wait_timeout=Duration(seconds=30))
    server.script(
        "GetServerInfo",
        inference_service_pb2.GetServerInfoResponse(
            server_version="1", device="cpu", default_contention=policy, allowed_contention_strategies=[1, 4]
        ),
    )
    info = await client.call("server_info")
    assert (info.server_version, info.device, info.default_strategy) == ("1", "cpu", "wait")
    assert (info.default_wait_timeout, info.default_preempt_after) == (30.0, None)
    assert info.allowed_strategies == ("fail", "wait_then_fail")


async def test_health_is_a_word(server: WireServer, client: BothWays) -> None:
    server.script("Check", wire_server.health("SERVING"), wire_server.health("NOT_SERVING"))
    assert await client.call("health") == "serving"
    assert await client.call("health", "readiness") == "not_serving"
    assert [call.request.service for call in server.calls] == ["", "readiness"]


async def test_health_of_an_unknown_name_is_an_error(server: WireServer, client: BothWays) -> None:
    server.script("Check", Refusal(grpc.StatusCode.NOT_FOUND, message="unknown service"))
    with pytest.raises(InferdError) as caught:
        await client.call("health", "nosuch")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    assert not isinstance(caught.value, ModelNotFound)
