"""What one key, and all keys together, may use, against a real server: refusals are typed, exact, and over in time."""

import asyncio
import signal
import time
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support.calls import Peer, endless, read_until, unary
from support.keys import As, Keys
from support.servers import ServerProcess
from support.wire import error_details, facts_of, fields_of, reason_of


def tokens(count: int) -> list[int]:
    """A prompt of so many tokens."""
    return [5 + i % 50 for i in range(count)]


def refusal(error: grpc.aio.AioRpcError) -> tuple[dict[str, str], float]:
    """(facts, seconds until a retry) of a RATE_LIMITED, which must be whole."""
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    details = error_details(error)
    delay = details["RetryInfo"].retry_delay
    [violation] = details["QuotaFailure"].violations
    facts = facts_of(error)
    assert violation.subject.endswith("/" + facts["limit"])
    assert facts["limit"] in violation.description
    assert facts["allowed"] in violation.description
    return facts, delay.seconds + delay.nanos / 1e9


async def test_requests_per_minute(peer: Peer, keys: Keys) -> None:
    asking = As(peer, keys, "rpm")
    count = inf.TokenizeRequest(model="open-a", prompt="x")
    began = time.monotonic()
    for _ in range(3):
        assert await asking.outcome("Tokenize", count) == "OK"
    facts, seconds = refusal(await asking.failure("Tokenize", count))
    spent = time.monotonic() - began
    assert facts == {
        "limit": "requests_per_minute",
        "scope": "key",
        "allowed": "3",
        "asked": "1",
        "retry_after_ms": facts["retry_after_ms"],
    }
    assert 20 - spent - 0.01 <= seconds <= 20.001
    for method, request in {
        "Generate": unary("open-a", prompt="x", max_tokens=1),
        "StreamGenerate": endless("open-a"),
        "Embed": inf.EmbedRequest(model="open-a", texts=["x"]),
        "Rerank": inf.RerankRequest(model="open-a", query="x", documents=["y"]),
    }.items():
        assert refusal(await asking.failure(method, request))[0]["limit"] == "requests_per_minute"
    # What looks on, and what gives back, is never limited.
    for method, request in {
        "ListModels": mod.ListModelsRequest(),
        "GetServerInfo": inf.GetServerInfoRequest(),
        "CancelGeneration": inf.CancelGenerationRequest(request_id="x"),
    }.items():
        assert await asking.outcome(method, request) == "OK"
    health = await peer.health.Check(health_pb2.HealthCheckRequest(), metadata=asking.metadata)
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_retry_after_the_told_time_succeeds(server: ServerProcess, peer: Peer, keys: Keys) -> None:
    """The refused one used 60 tokens at once; a prompt of one more comes in after a second."""
    asking = As(peer, keys, "tpm")
    answer = await asking.call("Generate", unary("open-a", ids=tokens(50), max_tokens=10, ignore_eos=True))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (50, 10)
    facts, seconds = refusal(await asking.failure("Generate", unary("open-a", ids=tokens(2), max_tokens=1)))
    assert (facts["limit"], facts["scope"], facts["allowed"], facts["asked"]) == ("tokens_per_minute", "key", "60", "2")
    assert 0 < seconds <= 2.001
    await asyncio.sleep(seconds)
    assert await asking.outcome("Generate", unary("open-a", ids=tokens(2), max_tokens=1)) == "OK"


async def test_texts_to_embed_count_like_prompts(peer: Peer, keys: Keys) -> None:
    asking = As(peer, keys, "vectors")
    error = await asking.failure("Embed", inf.EmbedRequest(model="vec-e", texts=["a " * 20, "a " * 20]))
    assert (reason_of(error), facts_of(error)["limit_tokens"]) == ("PROMPT_TOO_LONG", "40")
    taken = await asking.call("Embed", inf.EmbedRequest(model="vec-e", texts=["a " * 20]))
    assert 20 <= taken.usage.prompt_tokens <= 30
    facts, seconds = refusal(await asking.failure("Embed", inf.EmbedRequest(model="vec-e", texts=["a " * 20])))
    assert (facts["limit"], facts["asked"]) == ("tokens_per_minute", str(taken.usage.prompt_tokens))
    assert 0 < seconds <= 60
    outcome = await asking.outcome("Embed", inf.EmbedRequest(model="open-a", texts=["x"]))
    assert outcome == "MODEL_DENIED"


async def test_max_concurrent(peer: Peer, keys: Keys) -> None:
    asking = As(peer, keys, "one")
    running = asking.call("StreamGenerate", endless("open-a"))
    await read_until(running, "started")
    facts, seconds = refusal(await asking.failure("Generate", unary("open-a", prompt="x")))
    assert facts == {"limit": "max_concurrent", "scope": "key", "allowed": "1"}
    assert seconds > 0
    assert await As(peer, keys, "team").outcome("Generate", unary("open-a", prompt="x", max_tokens=1)) == "OK"
    running.cancel()
    async with asyncio.timeout(20):
        outcome = ""
        while outcome != "OK":
            outcome = await asking.outcome("Tokenize", inf.TokenizeRequest(model="open-a", prompt="x"))


async def test_a_prompt_and_an_output_have_a_longest(peer: Peer, keys: Keys) -> None:
    asking = As(peer, keys, "short")
    error = await asking.failure("Generate", unary("open-a", ids=tokens(9)))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
    assert facts_of(error) == {"prompt_tokens": "9", "limit_tokens": "8", "limit": "max_prompt_tokens"}
    assert fields_of(error) == ["tokens.ids"]
    error = await asking.failure("Generate", unary("open-a", prompt="word " * 20_000))
    assert (reason_of(error), facts_of(error)["limit_tokens"]) == ("PROMPT_TOO_LONG", "8")
    error = await asking.failure("Generate", unary("open-a", ids=tokens(8), max_tokens=6, temperature=-1))
    assert reason_of(error) == "INVALID_PARAMETER"
    assert fields_of(error) == ["sampling.temperature", "stop.max_tokens"]
    assert "at most 5 is allowed (max_output_tokens)" in str(error.details())
    for more in ({}, {"max_tokens": 5}):
        answer = await asking.call("Generate", unary("open-a", ids=tokens(8), ignore_eos=True, **more))
        assert (answer.usage.completion_tokens, answer.finish_reason) == (5, 3)


def change_limits(server: ServerProcess, keys: Keys, limits: dict[str, Any] | None) -> None:
    """Put them into the configuration and wait until it was read."""
    path = keys.path.with_name("inferd.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "limits": limits}))
    seen = len(server.log)
    server.signal(signal.SIGHUP)
    server.wait_for_log("configuration reloaded", since=seen)


async def test_the_server_s_own_limits_bound_all_keys_together_and_change_without_a_restart(
    server: ServerProcess, peer: Peer, keys: Keys
) -> None:
    await asyncio.to_thread(change_limits, server, keys, {"max_concurrent": 1, "max_output_tokens": 4})
    try:
        running = As(peer, keys, "team").call("StreamGenerate", endless("open-a", max_tokens=4))
        assert (await read_until(running, "finished")).end.usage.completion_tokens <= 4
        error = await As(peer, keys, "twin").failure("Generate", unary("open-a", prompt="x", max_tokens=5))
        assert fields_of(error) == ["stop.max_tokens"]
        await asyncio.to_thread(change_limits, server, keys, {"max_concurrent": 1})
        running = As(peer, keys, "team").call("StreamGenerate", endless("open-a"))
        await read_until(running, "started")
        facts, _ = refusal(await As(peer, keys, "twin").failure("Generate", unary("open-a", prompt="x")))
        assert facts == {"limit": "max_concurrent", "scope": "server", "allowed": "1"}
        running.cancel()
    finally:
        await asyncio.to_thread(change_limits, server, keys, None)
    assert await As(peer, keys, "twin").outcome("Generate", unary("open-a", prompt="x", max_tokens=1)) == "OK"


async def test_a_key_narrows_what_images_amount_to(peer: Peer, keys: Keys) -> None:
    asking = As(peer, keys, "glancer")
    info = await asking.call("GetServerInfo", inf.GetServerInfoRequest())
    assert (info.image_limits.max_images, info.image_limits.max_image_pixels) == (1, 100)
    assert info.image_limits.max_request_pixels == 33_554_432

    def showing(*images: bytes) -> inf.GenerateRequest:
        request = unary("open-a", chat=[("user", "x")])
        blobs = [gen.Blob(mime_type="image/png", data=data) for data in images]
        request.chat.messages[0].parts.extend(gen.ContentPart(image=blob) for blob in blobs)
        return request

    for images, reason, fields in (
        ([b"x"], "CAPABILITY_MISSING", []),
        ([b"x", b"x"], "INVALID_PARAMETER", ["chat.messages"]),
        ([bytes(2**20 + 1)], "INVALID_PARAMETER", ["chat.messages[0].parts[1].image.data"]),
    ):
        error = await asking.failure("Generate", showing(*images))
        assert reason_of(error) == reason
        assert fields_of(error) == fields if fields else "BadRequest" not in error_details(error)
    assert reason_of(await As(peer, keys, "root").failure("Generate", showing(b"x", b"x"))) == "CAPABILITY_MISSING"
