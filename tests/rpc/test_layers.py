"""The layers around handlers: the gate of each phase, and the access log."""

import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fakes.generations import fail, hang
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import model_service_pb2
from inferd_server.core.errors import queue_full
from inferd_server.serving.lifecycle import Phase
from support.rpc_world import World, open_world
from support.streams import eventually
from support.wire import error_details, reason_of


async def reason(call: grpc.aio.Call) -> str:
    """The reason that a call is refused with for a while, or OK."""
    try:
        await (call.read() if hasattr(call, "read") else call)
    except grpc.aio.AioRpcError as error:
        is_for_a_while = error_details(error)["RetryInfo"].retry_delay.seconds >= 1
        return reason_of(error) if is_for_a_while and error.code() is grpc.StatusCode.UNAVAILABLE else str(error)
    return "OK"


async def reasons(world: World) -> dict[str, str]:
    inference, models = world.inference, world.models
    return {
        "Generate": await reason(inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))),
        "StreamGenerate": await reason(inference.StreamGenerate(pb.StreamGenerateRequest(model="tiny", prompt="x"))),
        "Tokenize": await reason(inference.Tokenize(pb.TokenizeRequest(model="tiny", prompt="x"))),
        "CancelGeneration": await reason(inference.CancelGeneration(pb.CancelGenerationRequest(request_id="x"))),
        "GetServerInfo": await reason(inference.GetServerInfo(pb.GetServerInfoRequest())),
        "ListModels": await reason(models.ListModels(model_service_pb2.ListModelsRequest())),
        "GetModel": await reason(models.GetModel(model_service_pb2.GetModelRequest(name="tiny"))),
        "LoadModel": await reason(models.LoadModel(model_service_pb2.LoadModelRequest(name="tiny"))),
        "UnloadModel": await reason(models.UnloadModel(model_service_pb2.UnloadModelRequest(name="tiny"))),
        "WatchModels": await reason(models.WatchModels(model_service_pb2.WatchModelsRequest())),
        "Check": await reason(world.health.Check(health_pb2.HealthCheckRequest())),
    }


async def test_while_starting_inference_waits_and_the_registry_is_open() -> None:
    async with open_world(phase=Phase.STARTING) as world:
        closed = {"Generate", "StreamGenerate", "Tokenize", "CancelGeneration"}
        assert {name for name, why in (await reasons(world)).items() if why == "SERVER_STARTING"} == closed


@pytest.mark.parametrize("phase", [Phase.READY, Phase.LAME_DUCK])
async def test_ready_and_about_to_drain_everything_is_served(phase: Phase) -> None:
    async with open_world(phase=phase) as world:
        assert set((await reasons(world)).values()) == {"OK"}


async def test_while_draining_new_work_and_changes_are_refused() -> None:
    async with open_world(phase=Phase.DRAINING) as world:
        closed = {"Generate", "StreamGenerate", "Tokenize", "LoadModel", "UnloadModel"}
        assert {name for name, why in (await reasons(world)).items() if why == "SERVER_DRAINING"} == closed
        assert (await world.inference.GetServerInfo(pb.GetServerInfoRequest())).draining


async def test_a_bad_request_to_a_starting_server_learns_first_that_it_starts() -> None:
    async with open_world(phase=Phase.STARTING) as world:
        assert await reason(world.inference.Generate(pb.GenerateRequest(model="nope"))) == "SERVER_STARTING"


# --- the access log -----------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str, str]]:
    return [
        (record.method, record.code, record.reason, record.request_id, record.model)
        for record in caplog.records
        if record.name == "inferd.access"
    ]


async def logged(caplog: pytest.LogCaptureFixture, count: int) -> list[tuple[str, str, str, str, str]]:
    """The lines, once there are so many: a client may have its answer before the server has written the line."""
    await eventually(lambda: len(lines(caplog)) >= count)
    return lines(caplog)


async def test_each_call_leaves_one_line_without_its_prompt(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferd.access")
    await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="a secret", request_id="r-1"))
    world.generations.script = fail(queue_full("tiny", 1))
    call = world.inference.StreamGenerate(pb.StreamGenerateRequest(model="tiny", prompt="a secret"))
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    await world.health.Check(health_pb2.HealthCheckRequest())
    await world.models.GetModel(model_service_pb2.GetModelRequest(name="small"))

    assert sorted(await logged(caplog, 3)) == [
        ("/inferd.v1.InferenceService/Generate", "OK", "", "r-1", "tiny"),
        ("/inferd.v1.InferenceService/StreamGenerate", "RESOURCE_EXHAUSTED", "QUEUE_FULL", "", "tiny"),
        ("/inferd.v1.ModelService/GetModel", "OK", "", "", "small"),
    ]
    assert all(0 <= record.seconds < 5 for record in caplog.records if record.name == "inferd.access")
    assert "secret" not in caplog.text


async def test_an_id_that_the_server_made_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferd.access")
    await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
    assert (await logged(caplog, 1))[0][3] == "made-up"


async def test_a_callers_text_can_not_forge_a_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferd.access")
    request = pb.GenerateRequest(model="x\ny" * 100, prompt="x", request_id="a\nb")
    with pytest.raises(grpc.aio.AioRpcError):
        await world.inference.Generate(request)
    (line,) = await logged(caplog, 1)
    assert line[3] == "a\N{REPLACEMENT CHARACTER}b"
    assert "\n" not in line[4]
    assert len(line[4]) == 64


async def test_probes_are_logged_at_debug(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "inferd.access")
    await world.health.Check(health_pb2.HealthCheckRequest())
    with pytest.raises(grpc.aio.AioRpcError):
        await world.health.Check(health_pb2.HealthCheckRequest(service="nope"))
    assert [line[1] for line in await logged(caplog, 2)] == ["OK", "NOT_FOUND"]


async def test_a_cancel_and_a_deadline_are_told_apart(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferd.access")
    world.generations.script = hang
    call = world.inference.StreamGenerate(pb.StreamGenerateRequest(model="tiny", prompt="x"))
    await call.read()
    call.cancel()
    await eventually(lambda: len(lines(caplog)) == 1)
    with pytest.raises(grpc.aio.AioRpcError):
        await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"), timeout=0.1)
    await eventually(lambda: len(lines(caplog)) == 2)
    assert [line[1] for line in lines(caplog)] == ["CANCELLED", "DEADLINE_EXCEEDED"]
