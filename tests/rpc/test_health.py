"""grpc.health.v1: the table of docs/semantics.md §9."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fakes.registry import FakeRegistry, entry
from inferd_server.core.model import ModelState
from inferd_server.serving.lifecycle import Phase
from support.rpc_world import World, open_world
from support.streams import eventually
from support.wire import reason_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
LIVE = ("", "liveness")
READY = ("readiness", "inferd.v1.InferenceService")
MODELS = "inferd.v1.ModelService"
DEAD = ("ENGINE_FAILED", "died", 1.0)
CORRUPT = ("MODEL_CORRUPT", "truncated", 1.0)


async def check(world: World, name: str) -> int:
    response = await world.health.Check(health_pb2.HealthCheckRequest(service=name))
    return response.status


async def statuses(world: World) -> dict[str, int]:
    listed = await world.health.List(health_pb2.HealthListRequest())
    found = {name: response.status for name, response in listed.statuses.items()}
    for name, status in found.items():
        assert await check(world, name) == status
    return found


@pytest.mark.parametrize(
    ("phase", "ready", "models", "loaded"),
    [
        (Phase.STARTING, NOT_SERVING, SERVING, NOT_SERVING),
        (Phase.READY, SERVING, SERVING, SERVING),
        (Phase.LAME_DUCK, NOT_SERVING, NOT_SERVING, NOT_SERVING),
        (Phase.DRAINING, NOT_SERVING, NOT_SERVING, NOT_SERVING),
        (Phase.STOPPED, NOT_SERVING, NOT_SERVING, NOT_SERVING),
    ],
)
async def test_each_phase_has_its_statuses(phase: Phase, ready: int, models: int, loaded: int) -> None:
    async with open_world(phase=phase) as world:
        world.registry.set("tiny", state=ModelState.LOADED)
        assert await statuses(world) == {
            **dict.fromkeys(LIVE, SERVING),
            **dict.fromkeys(READY, ready),
            MODELS: models,
            "inferd.v1.Model/tiny": loaded,
            "inferd.v1.Model/big": NOT_SERVING,
        }


@pytest.mark.parametrize("state", list(ModelState))
async def test_a_model_serves_iff_it_is_loaded(world: World, state: ModelState) -> None:
    world.registry.set("tiny", state=state)
    assert await check(world, "inferd.v1.Model/tiny") == (SERVING if state is ModelState.LOADED else NOT_SERVING)
    assert await check(world, "inferd.v1.Model/small") == await check(world, "inferd.v1.Model/tiny")
    assert await check(world, "readiness") == SERVING


async def test_a_stuck_engine_turns_readiness_only_if_no_other_model_can_serve_and_until_it_returns(
    world: World,
) -> None:
    readiness = watch(world, "readiness")
    assert await read(readiness) == SERVING
    world.registry.set("tiny", state=ModelState.FAILED, last_error=DEAD, charged_nbytes=5)
    assert await check(world, "readiness") == SERVING
    world.registry.set("big", state=ModelState.FAILED, last_error=DEAD, charged_nbytes=5)
    assert await read(readiness) == NOT_SERVING
    assert await check(world, "liveness") == SERVING
    world.registry.set("big", charged_nbytes=0)
    assert await read(readiness) == SERVING


@pytest.mark.parametrize("error", [CORRUPT, DEAD])
async def test_a_model_that_the_next_request_loads_again_does_not_turn_readiness(error: tuple[str, str, float]) -> None:
    """Else no next request would ever be sent here."""
    async with open_world(registry=FakeRegistry(entry("only"))) as world:
        world.registry.set("only", state=ModelState.FAILED, last_error=error)
        assert await check(world, "readiness") == SERVING


@pytest.mark.parametrize("name", ["nope", "inferd.v1.Model/nope", "inferd.v1.Model/", "readiness "])
async def test_checking_an_unknown_name_is_not_found(world: World, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(world, name)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def watch(world: World, name: str) -> grpc.aio.UnaryStreamCall:
    return world.health.Watch(health_pb2.HealthCheckRequest(service=name))


async def read(call: grpc.aio.UnaryStreamCall) -> int:
    return (await asyncio.wait_for(call.read(), 5)).status


async def test_a_watch_tells_the_status_at_once_and_each_change() -> None:
    async with open_world(phase=Phase.STARTING) as world:
        readiness, model = watch(world, "readiness"), watch(world, "inferd.v1.Model/tiny")
        assert (await read(readiness), await read(model)) == (NOT_SERVING, NOT_SERVING)
        world.lifecycle.advance(Phase.READY)
        assert await read(readiness) == SERVING
        world.registry.set("tiny", state=ModelState.LOADED)
        assert await read(model) == SERVING
        world.registry.set("tiny", state=ModelState.DRAINING)
        assert await read(model) == NOT_SERVING
        world.lifecycle.advance(Phase.LAME_DUCK)
        assert await read(readiness) == NOT_SERVING


async def test_a_watch_of_an_unknown_name_stays_open(world: World) -> None:
    call = watch(world, "nope")
    assert await read(call) == UNKNOWN
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(call.read())), 0.1)
    assert not call.done()
    call.cancel()


async def test_a_watch_that_is_left_leaves_no_subscription(world: World) -> None:
    call = watch(world, "readiness")
    await read(call)
    assert len(world.registry.subscribers) == 1
    call.cancel()
    await eventually(lambda: world.registry.subscribers == [])


async def test_watches_end_with_the_server_and_new_ones_at_once(world: World) -> None:
    call = watch(world, "readiness")
    await read(call)
    world.lifecycle.advance(Phase.LAME_DUCK)
    assert await read(call) == NOT_SERVING
    world.server.end_watches()
    for ended in (call, watch(world, "")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(ended.read(), 5)
        assert reason_of(caught.value) == "SERVER_SHUTDOWN"
    assert await check(world, "") == SERVING
