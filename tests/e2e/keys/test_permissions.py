"""API keys against a real server: who may call what, on which models, and what a key can't find out."""

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support.calls import Peer, endless, failure_of, read, read_until, streamed, unary
from support.keys import As, Keys, status_bytes
from support.scraping import metrics_url, scrape_text
from support.servers import ServerProcess, serving, write_config
from support.wire import facts_of, fields_of, reason_of

FORBIDDEN, UNKNOWN = "secret-c", "nobody-x"
PREFIX = "the quick brown fox jumps over the lazy dog " * 12


def requests(model: str) -> dict[str, Any]:
    """A request of every method that names a model."""
    return {
        "Generate": unary(model, prompt="x", max_tokens=1),
        "StreamGenerate": streamed(model, prompt="x", max_tokens=1),
        "Embed": inf.EmbedRequest(model=model, texts=["x"]),
        "Rerank": inf.RerankRequest(model=model, query="x", documents=["y"]),
        "Tokenize": inf.TokenizeRequest(model=model, prompt="x"),
        "GetModel": mod.GetModelRequest(name=model),
        "LoadModel": mod.LoadModelRequest(name=model),
        "UnloadModel": mod.UnloadModelRequest(name=model),
        "WatchModels": mod.WatchModelsRequest(names=[model]),
    }


# --- credentials ------------------------------------------------------------------------------------------------


async def test_a_call_needs_exactly_one_valid_key(peer: Peer, keys: Keys) -> None:
    good = keys.secrets["root"]
    for metadata, reason in {
        (): "CREDENTIALS_MISSING",
        (("authorization", ""),): "CREDENTIALS_INVALID",
        (("authorization", "Bearer "),): "CREDENTIALS_INVALID",
        (("authorization", good),): "CREDENTIALS_INVALID",
        (("authorization", f"Basic {good}"),): "CREDENTIALS_INVALID",
        (("authorization", f"Bearer {good[:-1]}"),): "CREDENTIALS_INVALID",
        (("authorization", f"Bearer {good}x"),): "CREDENTIALS_INVALID",
        (("authorization", "Bearer " + "x" * 5000),): "CREDENTIALS_INVALID",
        (("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")): "CREDENTIALS_INVALID",
        (("authorization", f"Bearer {good}"),): "OK",
        (("authorization", f"bearer {good}"),): "OK",
    }.items():
        asking = As(peer, keys, list(metadata))
        assert await asking.outcome("ListModels", mod.ListModelsRequest()) == reason, metadata
        assert await asking.outcome("GetServerInfo", inf.GetServerInfoRequest()) == reason, metadata


async def test_disabled_and_expired_keys_are_refused_alike(peer: Peer, keys: Keys) -> None:
    failures = [
        await As(peer, keys, who).failure("GetServerInfo", inf.GetServerInfoRequest())
        for who in ("off", "old", [("authorization", "Bearer " + "k" * 40)])
    ]
    assert {failure.code() for failure in failures} == {grpc.StatusCode.UNAUTHENTICATED}
    assert len({status_bytes(failure) for failure in failures}) == 1
    assert await As(peer, keys, "young").outcome("GetServerInfo", inf.GetServerInfoRequest()) == "OK"


async def test_health_needs_no_key_and_tells_of_models_only_to_keys_that_see_them(peer: Peer, keys: Keys) -> None:
    def check(service: str, metadata: Any = None) -> Any:
        return peer.health.Check(health_pb2.HealthCheckRequest(service=service), metadata=metadata, timeout=10)

    for service in ("", "liveness", "readiness", "inferd.v1.ModelService"):
        assert (await check(service)).status == health_pb2.HealthCheckResponse.SERVING
        assert (await check(service, [("authorization", "Bearer nonsense")])).status
    listed = await peer.health.List(health_pb2.HealthListRequest())
    assert not [name for name in listed.statuses if name.startswith("inferd.v1.Model/")]
    listed = await peer.health.List(health_pb2.HealthListRequest(), metadata=keys.of("team"))
    assert {name for name in listed.statuses if "Model/" in name} == {
        "inferd.v1.Model/open-a",
        "inferd.v1.Model/open-b",
    }
    assert (await check("inferd.v1.Model/chat", keys.of("team"))).status
    for who in (None, keys.of("team")):
        told = {
            status.replace(name, "NAME")
            for name in (FORBIDDEN, UNKNOWN)
            if (status := str((await failure_of(check(f"inferd.v1.Model/{name}", who))).details()))
        }
        assert len(told) == 1


async def test_reflection_needs_any_key(peer: Peer, keys: Keys) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(peer.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in stub.ServerReflectionInfo(iter([request])):
            pass
    assert reason_of(refused.value) == "CREDENTIALS_MISSING"
    async for answer in stub.ServerReflectionInfo(iter([request]), metadata=keys.of("looker")):
        assert answer.list_services_response.service


# --- permissions ------------------------------------------------------------------------------------------------

ALLOWED = {
    "root": {"generate", "observe", "admin"},
    "team": {"generate", "observe"},
    "loader": {"admin"},
    "looker": {"observe"},
}
GROUPS = {
    "generate": ["Generate", "StreamGenerate", "Tokenize", "CancelGeneration"],
    "observe": ["ListModels", "GetModel", "WatchModels"],
    "admin": ["LoadModel", "UnloadModel"],
}


async def test_a_key_calls_what_its_methods_allow_and_nothing_else(peer: Peer, keys: Keys) -> None:
    others = {
        "CancelGeneration": inf.CancelGenerationRequest(request_id="x"),
        "ListModels": mod.ListModelsRequest(),
    }
    for who, groups in ALLOWED.items():
        asking = As(peer, keys, who)
        for group, methods in GROUPS.items():
            for method in methods:
                outcome = await asking.outcome(method, {**requests("open-a"), **others}[method])
                assert outcome == ("OK" if group in groups else "METHOD_DENIED"), (who, method)
    refused = await As(peer, keys, "looker").failure("Generate", unary("open-a", prompt="x"))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    assert facts_of(refused) == {"method": "/inferd.v1.InferenceService/Generate", "needed": "generate"}


async def test_forbidden_and_unknown_models_are_told_apart_by_nothing(peer: Peer, keys: Keys) -> None:
    for who in ("team", "loader"):
        asking = As(peer, keys, who)
        for method, request in requests(FORBIDDEN).items():
            forbidden = await asking.failure(method, request)
            unknown = await asking.failure(method, requests(UNKNOWN)[method])
            if reason_of(forbidden) == "METHOD_DENIED":
                continue
            assert (forbidden.code(), reason_of(forbidden)) == (grpc.StatusCode.PERMISSION_DENIED, "MODEL_DENIED")
            assert status_bytes(forbidden).replace(FORBIDDEN.encode(), UNKNOWN.encode()) == status_bytes(unknown)
            hidden = await asking.failure(method, requests("hidden")[method])
            assert status_bytes(hidden).replace(b"hidden", b"sesame") == status_bytes(
                await asking.failure(method, requests("sesame")[method])
            )


async def test_what_lies_within_its_patterns_but_is_not_there_is_not_found(peer: Peer, keys: Keys) -> None:
    error = await As(peer, keys, "team").failure("Generate", unary("open-z", prompt="x"))
    assert reason_of(error) == "MODEL_NOT_FOUND"
    assert facts_of(error)["configured_models"] == "open-a,open-b"
    error = await As(peer, keys, "root").failure("Generate", unary("open-z", prompt="x"))
    assert facts_of(error)["configured_models"] == "open-a,open-b,secret-c,vec-e"


async def test_a_pattern_that_names_an_alias_allows_its_model(peer: Peer, keys: Keys) -> None:
    asking = As(peer, keys, "alias")
    for name in ("chat", "open-a"):
        assert await asking.outcome("Generate", unary(name, prompt="x", max_tokens=1)) == "OK"
    assert await asking.outcome("Generate", unary("open-b", prompt="x", max_tokens=1)) == "MODEL_DENIED"
    listed = await asking.call("ListModels", mod.ListModelsRequest())
    assert [model.name for model in listed.models] == ["open-a"]


async def test_lists_and_watches_tell_of_visible_models_alone(peer: Peer, keys: Keys) -> None:
    asking, root = As(peer, keys, "team"), As(peer, keys, "root")
    names: list[str] = []
    token = ""
    while True:
        page = await asking.call("ListModels", mod.ListModelsRequest(page_size=1, page_token=token))
        names += [model.name for model in page.models]
        token = page.next_page_token
        if not token:
            break
    assert names == ["open-a", "open-b"]
    watch = aiter(asking.call("WatchModels", mod.WatchModelsRequest()))
    snapshot = (await anext(watch)).snapshot
    assert [model.name for model in snapshot.models] == ["open-a", "open-b"]
    for name in (FORBIDDEN, "open-b"):
        await root.call("UnloadModel", mod.UnloadModelRequest(name=name))
        await root.call("LoadModel", mod.LoadModelRequest(name=name))
    seen: list[mod.Model] = []
    while not (seen and seen[-1].name == "open-b" and seen[-1].state == mod.MODEL_STATE_LOADED):
        seen.append((await anext(watch)).changed)
    assert FORBIDDEN not in {model.name for model in seen}


async def test_loads_and_refusals_name_no_model_that_a_key_may_not_see(peer: Peer, keys: Keys) -> None:
    loader, root = As(peer, keys, "loader"), As(peer, keys, "root")
    for name in ("open-a", "open-b"):
        await root.call("UnloadModel", mod.UnloadModelRequest(name=name))
    await root.call("LoadModel", mod.LoadModelRequest(name=FORBIDDEN, pin=True))
    await root.call("LoadModel", mod.LoadModelRequest(name="open-a", pin=True))
    probe = mod.LoadModelRequest(name="open-b", validate_only=True)
    assert list((await root.call("LoadModel", probe)).blocking_models) == ["open-a", FORBIDDEN]
    assert list((await loader.call("LoadModel", probe)).blocking_models) == ["open-a"]
    fail = gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_FAIL)
    refused = await loader.failure("LoadModel", mod.LoadModelRequest(name="open-b", contention=fail))
    assert reason_of(refused) == "CAPACITY_EXHAUSTED"
    assert facts_of(refused)["blocking_models"] == "open-a"
    assert FORBIDDEN.encode() not in status_bytes(refused)
    await root.call("LoadModel", mod.LoadModelRequest(name=FORBIDDEN, pin=False))
    loaded = await loader.call("LoadModel", mod.LoadModelRequest(name="open-b"))
    assert list(loaded.evicted_models) == []
    await root.call("LoadModel", mod.LoadModelRequest(name="open-a", pin=False))


async def test_strategies_and_priorities_are_the_key_s(peer: Peer, keys: Keys) -> None:
    meek, team = As(peer, keys, "meek"), As(peer, keys, "team")
    waits = gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_WAIT)
    fails = gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_FAIL)
    ask = {"prompt": "x", "max_tokens": 1}
    refused = await meek.failure("Generate", unary("open-a", contention=waits, **ask))
    assert (reason_of(refused), facts_of(refused)["allowed_strategies"]) == ("STRATEGY_DENIED", "fail")
    assert await meek.outcome("Generate", unary("open-a", contention=fails, **ask)) == "OK"
    assert await team.outcome("Generate", unary("open-a", contention=waits, **ask)) == "OK"
    refused = await meek.failure("Generate", unary("open-a", priority=1, **ask))
    assert fields_of(refused) == ["scheduling.priority"]
    assert "between -100 and 0" in str(refused.details())
    assert await meek.outcome("Generate", unary("open-a", priority=-5, **ask)) == "OK"
    assert await team.outcome("Generate", unary("open-a", priority=100, **ask)) == "OK"
    info = await meek.call("GetServerInfo", inf.GetServerInfoRequest())
    assert list(info.allowed_contention_strategies) == [gen.CONTENTION_STRATEGY_FAIL]


# --- what keys share --------------------------------------------------------------------------------------------


async def test_request_ids_belong_to_their_key(peer: Peer, keys: Keys) -> None:
    team, twin = As(peer, keys, "team"), As(peer, keys, "twin")
    mine = team.call("StreamGenerate", endless("open-a", request_id="same"))
    await read_until(mine, "started")
    theirs = twin.call("StreamGenerate", endless("open-a", request_id="same"))
    answer = await read_until(theirs, "started")
    assert reason_of(await team.failure("StreamGenerate", endless("open-a", request_id="same"))) == "REQUEST_ID_IN_USE"
    cancel = inf.CancelGenerationRequest(request_id="same")
    assert not (await As(peer, keys, "root").call("CancelGeneration", cancel)).cancelled
    assert (await twin.call("CancelGeneration", cancel)).cancelled
    assert reason_of((await read(theirs, answer)).failure) == "CANCELLED_BY_REQUEST"
    assert not (await twin.call("CancelGeneration", cancel)).cancelled
    assert (await team.call("CancelGeneration", cancel)).cancelled


async def test_keys_share_no_prefix_cache_not_even_in_one_batch(peer: Peer, keys: Keys) -> None:
    team, twin = As(peer, keys, "team"), As(peer, keys, "twin")

    async def cached(asking: As, **more: Any) -> int:
        answer = await asking.call("Generate", unary("open-a", prompt=PREFIX, max_tokens=2, **more))
        return int(answer.usage.cached_prompt_tokens)

    assert await cached(team, session_id="s") == 0
    assert await cached(team, session_id="s") > 64
    assert await cached(twin, session_id="s") == 0
    running = [
        asyncio.ensure_future(cached(asking, session_id="s", request_id=f"r{i}"))
        for i in range(3)
        for asking in (team, twin, As(peer, keys, "young"))
    ]
    counts = await asyncio.gather(*running)
    assert counts[0] > 64
    assert counts[1] > 64
    assert counts[2] == 0


async def test_keys_share_a_prefix_cache_where_they_are_told_to(keys: Keys, tmp_path: Path, tiny_model: Path) -> None:
    auth = {"keys_file": str(keys.path), "share_prefix_cache": True}
    config = write_config(tmp_path, [{"name": "open-a", "path": tiny_model}], budget_gb=1, auth=auth)
    with serving(config) as server:
        async with Peer(server.address) as peer:
            cached = []
            for who in ("team", "twin"):
                request = unary("open-a", prompt=PREFIX[:400], max_tokens=2, session_id="s")
                cached.append((await As(peer, keys, who).call("Generate", request)).usage.cached_prompt_tokens)
    assert cached[0] == 0
    assert cached[1] >= 64


# --- what is told -----------------------------------------------------------------------------------------------


async def headers_sent_raw(address: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """What a server answers to an HTTP/2 request with these headers, which no client of grpc would send."""
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name + len(value).to_bytes(1, "big") + value for name, value in headers
    )

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    message = frame(1, 4, 1, block) + frame(0, 1, 1, bytes(5))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + message)
    answer = b""
    async with asyncio.timeout(20):
        while b"grpc-status" not in answer:
            answer += await reader.read(65_536)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_key_with_a_stray_byte_is_refused_and_not_logged(server: ServerProcess, keys: Keys) -> None:
    secret, seen = keys.secrets["root"].encode(), len(server.log)
    answer = await headers_sent_raw(
        server.address,
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inferd.v1.InferenceService/GetServerInfo"),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"authorization", b"Bearer " + secret + b"\xff"),
        ],
    )
    assert b"Bearer KEY" in answer
    # What grpc logs of it comes before.
    await asyncio.to_thread(server.wait_for_log, "/inferd.v1.InferenceService/GetServerInfo", since=seen)
    assert secret.decode() not in "\n".join(server.log)


async def test_no_key_is_ever_told(server: ServerProcess, peer: Peer, keys: Keys) -> None:
    wrong = "inferd_" + os.urandom(20).hex()
    errors = [
        await As(peer, keys, [("authorization", f"Bearer {wrong}")]).failure("GetModel", mod.GetModelRequest(name="x")),
        await As(peer, keys, "team").failure("GetModel", mod.GetModelRequest(name="x")),
        await As(peer, keys, "looker").failure("Generate", unary("open-a", prompt="x")),
    ]
    told = "\n".join([*server.log, await scrape_text(metrics_url(server)), *(str(error) for error in errors)])
    told += "".join(status_bytes(error).decode(errors="replace") for error in errors)
    for secret in (wrong, *keys.secrets.values()):
        assert secret not in told
        assert secret.removeprefix("inferd_") not in told
    for entry in keys.entries.values():
        assert entry["hash"].removeprefix("sha256:") not in told
    assert any('"key_id": "looker"' in line and "METHOD_DENIED" in line for line in server.log)
    assert any('"key_id": ""' in line and "CREDENTIALS_INVALID" in line for line in server.log)
