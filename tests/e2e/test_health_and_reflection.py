"""grpc.health.v1 in every phase, reflection in both versions, and what a server says of itself."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support.calls import NOT_SERVING, SERVING, Peer, failure_of, names, read, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.wire import reason_of

UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
INFERENCE, MODELS = "inferd.v1.InferenceService", "inferd.v1.ModelService"
TESTS = str(Path(__file__).parents[1])


async def test_check_knows_every_name_and_no_other(peer: Peer) -> None:
    for name in ("", "liveness", "readiness", INFERENCE, MODELS, "inferd.v1.Model/tiny", "inferd.v1.Model/small"):
        assert await peer.check(name) == SERVING, name
    assert await peer.check("inferd.v1.Model/plain") == NOT_SERVING, "configured, not resident"
    for name in ("nothing", "inferd.v1.Model/", "inferd.v1.Model/nothing", "inferd.v1", " ", "x" * 5000):
        error = await failure_of(peer.health.Check(health_pb2.HealthCheckRequest(service=name)))
        assert error.code() is grpc.StatusCode.NOT_FOUND
    assert (await peer.model("plain")).state == mod.MODEL_STATE_UNLOADED, "asking loads nothing"


async def test_list_names_everything(peer: Peer) -> None:
    call = peer.channel.unary_unary(
        "/grpc.health.v1.Health/List",
        request_serializer=lambda _: b"",
        response_deserializer=health_pb2.HealthListResponse.FromString,
    )
    statuses = {name: answer.status for name, answer in (await call(None)).statuses.items()}
    models = {f"inferd.v1.Model/{name}": SERVING for name in ("endless", "serial", "short", "tiny")}
    fixed = dict.fromkeys(["", "liveness", "readiness", INFERENCE, MODELS], SERVING)
    assert statuses == {**fixed, **models, "inferd.v1.Model/plain": NOT_SERVING}


async def test_watch_tells_the_status_at_once_and_each_change(peer: Peer, neighbour: Peer) -> None:
    watch = peer.health.Watch(health_pb2.HealthCheckRequest(service="inferd.v1.Model/plain"))
    unknown = peer.health.Watch(health_pb2.HealthCheckRequest(service="inferd.v1.Model/nothing"))
    assert (await watch.read()).status == NOT_SERVING
    assert (await unknown.read()).status == UNKNOWN
    await neighbour.models.LoadModel(mod.LoadModelRequest(name="plain"), timeout=20)
    assert (await asyncio.wait_for(watch.read(), 30)).status == SERVING
    await neighbour.models.UnloadModel(mod.UnloadModelRequest(name="plain"), timeout=20)
    assert (await asyncio.wait_for(watch.read(), 30)).status == NOT_SERVING
    assert not unknown.done(), "it stays open"
    watch.cancel()
    unknown.cancel()


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServerProcess]:
    """A server whose second preload takes two seconds."""
    folder = tmp_path_factory.mktemp("starting")
    models = [{"name": name, "path": tiny_model, "preload": True} for name in ("first", "slow-load")]
    config = write_config(folder, models, budget_gb=1)
    program = ("-m", "fakes.faulty_server")
    with serving(config, program=program, PYTHONPATH=TESTS, INFERD_TEST_LOAD_SECONDS="2") as server:
        yield server


async def test_while_preloads_run_the_server_lives_and_is_not_ready(starting: ServerProcess) -> None:
    async with Peer(starting.address) as peer:
        watch = peer.health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == NOT_SERVING
        await peer.wait_for_model("first", lambda model: model.state == mod.MODEL_STATE_LOADED)
        for name in ("", "liveness", MODELS):
            assert await peer.check(name) == SERVING
        for name in ("readiness", INFERENCE, "inferd.v1.Model/first", "inferd.v1.Model/slow-load"):
            assert await peer.check(name) == NOT_SERVING
        for call in (
            peer.inference.Generate(unary("first", prompt="x")),
            peer.inference.Tokenize(inf.TokenizeRequest(model="nothing", prompt="x")),
            peer.inference.Embed(inf.EmbedRequest(model="first", texts=["x"])),
            peer.inference.CancelGeneration(inf.CancelGenerationRequest(request_id="x")),
        ):
            error = await failure_of(call)
            assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STARTING")
        assert (
            reason_of((await read(peer.inference.StreamGenerate(streamed("", prompt="")))).failure) == "SERVER_STARTING"
        )
        assert not (await peer.inference.GetServerInfo(inf.GetServerInfoRequest())).draining
        progress = []
        while await peer.check("readiness") == NOT_SERVING:
            progress.append((await peer.model("slow-load")).load_progress)
            await asyncio.sleep(0.02)
        assert progress == sorted(progress)
        assert 0 < progress[-1] <= 1
        assert (await watch.read()).status == SERVING
        assert await peer.check("inferd.v1.Model/slow-load") == SERVING
        await peer.inference.Generate(unary("first", prompt="x", max_tokens=1))


async def test_the_server_tells_its_versions_limits_and_policy(peer: Peer) -> None:
    info = await peer.inference.GetServerInfo(inf.GetServerInfoRequest())
    assert info.server_version
    assert info.mlx_version
    assert info.device
    assert abs(time.time() - info.start_time.ToDatetime().timestamp()) < 86_400
    assert info.max_message_bytes == 64 * 2**20
    assert info.max_queue_length == 1024
    assert info.default_contention.strategy == gen.CONTENTION_STRATEGY_WAIT_THEN_FAIL
    assert len(info.allowed_contention_strategies) == 3
    assert not info.draining


async def test_models_are_listed_with_what_they_are_and_cost(peer: Peer) -> None:
    listed = await peer.models.ListModels(mod.ListModelsRequest())
    assert names(listed.models) == ["endless", "plain", "serial", "short", "tiny"]
    tiny, plain, endless = listed.models[4], listed.models[1], listed.models[0]
    assert list(tiny.aliases) == ["small", "chat-small"] or list(tiny.aliases) == ["chat-small", "small"]
    assert (tiny.architecture, tiny.context_length, tiny.quantization_bits) == ("llama", 4096, 0)
    assert set(tiny.capabilities) == {mod.MODEL_CAPABILITY_GENERATE, mod.MODEL_CAPABILITY_CHAT}
    assert set(plain.capabilities) == {mod.MODEL_CAPABILITY_GENERATE}
    assert (plain.state, plain.memory.charged_bytes) == (mod.MODEL_STATE_UNLOADED, 0)
    assert (tiny.state, tiny.load_generation) == (mod.MODEL_STATE_LOADED, 1)
    assert tiny.memory.charged_bytes == tiny.memory.weights_bytes == tiny.memory.estimated_bytes > 400_000
    assert endless.revision == "2026-11-01"
    assert listed.memory.used_bytes == sum(model.memory.charged_bytes for model in listed.models)
    assert listed.memory.limit_bytes == 2**30
    assert listed.memory.reserved_bytes == 0
    first = await peer.models.ListModels(mod.ListModelsRequest(page_size=2))
    second = await peer.models.ListModels(mod.ListModelsRequest(page_size=2, page_token=first.next_page_token))
    third = await peer.models.ListModels(mod.ListModelsRequest(page_size=2, page_token=second.next_page_token))
    assert [*names(first.models), *names(second.models), *names(third.models)] == names(listed.models)
    assert third.next_page_token == ""
    resident = await peer.models.ListModels(mod.ListModelsRequest(states=[mod.MODEL_STATE_LOADED]))
    assert names(resident.models) == ["endless", "serial", "short", "tiny"]
    assert (await peer.model("small")).name == "tiny"


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_describes_every_service(peer: Peer, version: str) -> None:
    # Version 1 has the same messages under another name.
    call = peer.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = {service.name for service in (await call.read()).list_services_response.service}
    assert {INFERENCE, MODELS, "grpc.health.v1.Health"} <= listed
    for symbol in sorted(listed):
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        found = (await call.read()).file_descriptor_response.file_descriptor_proto
        files = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in found]
        assert any(symbol == f"{file.package}.{service.name}" for file in files for service in file.service)
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.Such"))
    assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
