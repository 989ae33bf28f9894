"""Server reflection, v1alpha and v1: the library knows v1alpha alone, newer tools ask for v1 first."""

from collections.abc import Sequence

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA = reflection.SERVICE_NAME
V1 = "grpc.reflection.v1.ServerReflection"


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Serve both versions, which list `service_names` and themselves."""
    _register_v1()
    servicer = reflection.aio.ReflectionServicer([*service_names, V1ALPHA, V1])
    # The messages of both versions are the same on the wire.
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for version in (V1ALPHA, V1):
        handler = grpc.method_handlers_generic_handler(version, {"ServerReflectionInfo": method})
        server.add_generic_rpc_handlers((handler,))


def _register_v1() -> None:
    """Put v1's descriptor into the pool, copied from v1alpha's: listing a service without one breaks the listing."""
    pool = descriptor_pool.Default()
    try:
        pool.FindFileContainingSymbol(V1)
    except KeyError:
        pool.AddSerializedFile(_v1_file())


def _v1_file() -> bytes:
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = "grpc.reflection.v1"
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    for service in file.service:
        for method in service.method:
            method.input_type, method.output_type = _renamed(method.input_type), _renamed(method.output_type)
    return file.SerializeToString()


def _renamed(type_name: str) -> str:
    return type_name.replace(".grpc.reflection.v1alpha.", ".grpc.reflection.v1.")
