"""The contract itself: what callers may rely on beyond the text of the protos."""

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2

ROOT = Path(__file__).parents[2]
BUF = ROOT / ".venv/bin/buf"
FILES: tuple[FileDescriptor, ...] = (
    generation_pb2.DESCRIPTOR,
    inference_service_pb2.DESCRIPTOR,
    model_service_pb2.DESCRIPTOR,
)


def shape(field: FieldDescriptor) -> tuple[object, ...]:
    """What the wire and the generated code make of a field."""
    return (
        field.name,
        field.number,
        field.type,
        field.is_repeated,
        field.has_presence,
        field.message_type.full_name if field.message_type else None,
        field.containing_oneof.name if field.containing_oneof else None,
    )


def shared_fields(message: Descriptor) -> list[tuple[object, ...]]:
    return [shape(field) for field in message.fields if field.number <= 15]


def test_a_generate_request_is_a_stream_request_without_the_shape_of_the_stream() -> None:
    unary = inference_service_pb2.GenerateRequest.DESCRIPTOR
    stream = inference_service_pb2.StreamGenerateRequest.DESCRIPTOR
    assert [shape(field) for field in unary.fields] == shared_fields(unary) == shared_fields(stream)
    assert [field.name for field in stream.fields if field.number > 15] == ["stream"]


def test_a_generate_request_parses_as_a_stream_request_and_says_the_same() -> None:
    unary = inference_service_pb2.GenerateRequest(request_id="a", model="m", prompt="p", session_id="s")
    unary.sampling.seed = 2**64 - 1
    unary.stop.sequences.append("x")
    unary.scheduling.preemptible = False
    stream = inference_service_pb2.StreamGenerateRequest.FromString(unary.SerializeToString())
    assert inference_service_pb2.GenerateRequest.FromString(stream.SerializeToString()) == unary


def test_what_a_stream_ends_with_is_in_the_unary_answer_under_the_same_names_and_types() -> None:
    answer = inference_service_pb2.GenerateResponse.DESCRIPTOR.fields_by_name
    response = inference_service_pb2.StreamGenerateResponse
    for part in (response.Started, response.Finished):
        for field in part.DESCRIPTOR.fields:
            if field.name == "prompt_tokens":  # usage.prompt_tokens in the unary answer
                continue
            assert (answer[field.name].type, answer[field.name].message_type) == (field.type, field.message_type)


def test_every_enum_starts_with_a_zero_that_means_not_set() -> None:
    enums = [enum for file in FILES for enum in file.enum_types_by_name.values()]
    assert len(enums) >= 8
    for enum in enums:
        assert enum.values[0].number == 0
        assert enum.values[0].name.endswith("_UNSPECIFIED")


def test_buf_finds_nothing_to_say_and_is_asked_for_comments() -> None:
    assert "COMMENTS" in (ROOT / "buf.yaml").read_text()
    found = subprocess.run([BUF, "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_stubs_are_what_the_protos_say() -> None:
    built = subprocess.run(
        [BUF, "build", "--as-file-descriptor-set", "--exclude-source-info", "--exclude-imports", "-o", "-"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    said = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(built).file}
    stubs = {file.name: descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb) for file in FILES}
    assert said.keys() == stubs.keys()
    for name, file in said.items():
        for field in every_field(file.message_type):
            field.ClearField("json_name")  # buf writes down what protoc leaves to be derived
        assert stubs[name] == file, f"{name}: run make generate"


def every_field(messages: Iterable[descriptor_pb2.DescriptorProto]) -> Iterator[descriptor_pb2.FieldDescriptorProto]:
    for message in messages:
        yield from message.field
        yield from every_field(message.nested_type)
