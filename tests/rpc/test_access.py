"""Keys and limits at the wire, over fakes: which method needs what, in which order, and what is told of models."""

import hashlib
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fakes.generations import fail
from fakes.registry import FakeRegistry, entry
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import model_service_pb2
from inferd_server.core.access import Access, Key, Limits, MethodGroup
from inferd_server.core.errors import InferdError, capacity_exhausted, model_not_found, preempted
from inferd_server.rpc import server
from inferd_server.rpc.interceptors.authenticating import GROUPS
from inferd_server.rpc.interceptors.limiting import LIMITED
from inferd_server.serving.callers import Callers
from inferd_server.serving.lifecycle import Phase
from support.rpc_world import World, open_world
from support.wire import facts_of, reason_of

KEYS = [
    Key("all", hashlib.sha256(b"all").digest()),
    Key("team", hashlib.sha256(b"team").digest(), Access(models=("tiny",))),
    Key("once", hashlib.sha256(b"once").digest(), Access(limits=Limits(requests_per_minute=1))),
    Key("looks", hashlib.sha256(b"looks").digest(), Access(methods=frozenset({MethodGroup.OBSERVE}))),
]


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(registry=FakeRegistry(entry("big"), entry("tiny", "small")), callers=Callers(KEYS)) as opened:
        yield opened


async def refused(call: grpc.aio.Call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


def test_every_method_of_the_contract_says_what_it_needs() -> None:
    services = [pb.DESCRIPTOR.services_by_name["InferenceService"]]
    services += [model_service_pb2.DESCRIPTOR.services_by_name["ModelService"]]
    contract = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert {method for method in GROUPS if method.startswith("/inferd.")} == contract
    assert contract >= LIMITED


async def test_the_phase_comes_before_the_key_and_the_key_before_everything_else(world: World) -> None:
    bad = pb.GenerateRequest(model="nope", prompt="")
    assert reason_of(await refused(world.inference.Generate(bad))) == "CREDENTIALS_MISSING"
    assert reason_of(await refused(world.inference.Generate(bad, metadata=bearer("looks")))) == "METHOD_DENIED"
    world.lifecycle.advance(Phase.DRAINING)
    assert reason_of(await refused(world.inference.Generate(bad))) == "SERVER_DRAINING"


async def test_a_watch_ends_when_its_key_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALLED_WRITE_SECONDS", 2.0)
    now = [0.0]
    brief = Key("brief", hashlib.sha256(b"brief").digest(), expires=10.0)
    async with open_world(callers=Callers([brief], wall_clock=lambda: now[0])) as world:
        watch = world.models.WatchModels(model_service_pb2.WatchModelsRequest(), metadata=bearer("brief"), timeout=30)
        watching = aiter(watch)
        await anext(watching)
        now[0] = 10.0
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await anext(watching)
        assert reason_of(ended.value) == "CREDENTIALS_INVALID"


async def test_unreadable_bytes_need_a_key_too(world: World) -> None:
    method = world.channel.unary_unary("/inferd.v1.InferenceService/Generate")
    assert reason_of(await refused(method(b"\xff\xff"))) == "CREDENTIALS_MISSING"
    assert reason_of(await refused(method(b"\xff\xff", metadata=bearer("all")))) == "INVALID_PARAMETER"


@pytest.mark.parametrize("method", ["InferenceService/Generate", "InferenceService/StreamGenerate"])
@pytest.mark.parametrize("metadata", [None, bearer("wrong")])
async def test_nothing_is_read_of_a_call_without_a_valid_key(
    world: World, method: str, metadata: list[tuple[str, str]] | None
) -> None:
    """The client's message never comes: whoever waits for it has room for it."""
    silent = world.channel.stream_unary(f"/inferd.v1.{method}")(metadata=metadata, timeout=10)
    assert reason_of(await refused(silent)).startswith("CREDENTIALS_")
    silent = world.channel.stream_unary(f"/inferd.v1.{method}")(metadata=bearer("all"), timeout=0.5)
    assert (await refused(silent)).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_key_that_becomes_valid_while_its_call_is_refused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers(KEYS)
    genuine, looks = callers.authenticate, ["wrong", "all"]
    monkeypatch.setattr(callers, "authenticate", lambda key: genuine(looks.pop(0)))
    async with open_world(callers=callers) as world:
        silent = world.channel.stream_unary("/inferd.v1.InferenceService/Generate")(metadata=bearer("all"), timeout=10)
        assert reason_of(await refused(silent)) == "CREDENTIALS_INVALID"
    assert not looks


async def test_a_bad_request_counts_and_one_without_a_key_does_not(world: World) -> None:
    bad = pb.GenerateRequest(model="tiny")
    for _ in range(3):
        await refused(world.inference.Generate(bad, metadata=bearer("wrong")))
    assert reason_of(await refused(world.inference.Generate(bad, metadata=bearer("once")))) == "INVALID_PARAMETER"
    assert reason_of(await refused(world.inference.Generate(bad, metadata=bearer("once")))) == "RATE_LIMITED"


async def test_limits_hold_without_keys_and_never_for_health() -> None:
    limits = Limits(requests_per_minute=1, max_concurrent=1)
    async with open_world(callers=Callers(None, limits)) as world:
        good = pb.GenerateRequest(model="tiny", prompt="x")
        assert (await world.inference.Generate(good)).text == "Hello world"
        error = await refused(world.inference.Generate(good))
        assert (reason_of(error), facts_of(error)["scope"]) == ("RATE_LIMITED", "server")
        for _ in range(20):
            await world.health.Check(health_pb2.HealthCheckRequest())
            await world.models.ListModels(model_service_pb2.ListModelsRequest())


@pytest.mark.parametrize(
    "error",
    [
        model_not_found("x", ["big", "tiny"]),
        capacity_exhausted("tiny", ["big", "tiny"], 3, 2, 4),
        preempted("tiny", "big").with_facts(completion_tokens=3),
    ],
)
async def test_errors_from_below_name_visible_models_alone(world: World, error: InferdError) -> None:
    world.generations.script = fail(error)
    good = pb.GenerateRequest(model="tiny", prompt="x")
    full = await refused(world.inference.Generate(good, metadata=bearer("all")))
    told = await refused(world.inference.Generate(good, metadata=bearer("team")))
    assert (told.code(), reason_of(told), facts_of(told).keys()) == (
        full.code(),
        reason_of(full),
        facts_of(full).keys(),
    )
    assert "big" in str(full.details())
    assert "big" not in f"{told.details()}{facts_of(told)}"
    assert facts_of(told).get("completion_tokens") == facts_of(full).get("completion_tokens")


async def test_model_health_may_be_public() -> None:
    callers = Callers(KEYS, nobody=Access(models=("*",), methods=frozenset()))
    async with open_world(callers=callers) as world:
        status = await world.health.Check(health_pb2.HealthCheckRequest(service="inferd.v1.Model/tiny"))
        assert status.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert reason_of(await refused(world.models.ListModels(model_service_pb2.ListModelsRequest()))) == (
            "CREDENTIALS_MISSING"
        )
