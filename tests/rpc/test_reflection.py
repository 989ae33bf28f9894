"""Reflection, both versions."""

import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb

from support.rpc_world import World

V1, V1ALPHA = "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"
SERVICES = {
    "grpc.health.v1.Health",
    "inferd.v1.InferenceService",
    "inferd.v1.ModelService",
    V1,
    V1ALPHA,
}


async def ask(world: World, version: str, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
    method = world.channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )
    call = method()
    await call.write(request)
    response = await call.read()
    await call.done_writing()
    return response


@pytest.mark.parametrize("version", [V1, V1ALPHA])
async def test_every_service_is_listed_and_has_a_descriptor(world: World, version: str) -> None:
    listed = await ask(world, version, pb.ServerReflectionRequest(list_services=""))
    names = {service.name for service in listed.list_services_response.service}
    assert names == SERVICES
    for name in names:
        found = await ask(world, version, pb.ServerReflectionRequest(file_containing_symbol=name))
        files = map(descriptor_pb2.FileDescriptorProto.FromString, found.file_descriptor_response.file_descriptor_proto)
        assert name in {f"{file.package}.{service.name}" for file in files for service in file.service}


async def test_an_unknown_symbol_is_an_error_in_the_stream(world: World) -> None:
    response = await ask(world, V1, pb.ServerReflectionRequest(file_containing_symbol="no.Such"))
    assert response.error_response.error_code == 5
