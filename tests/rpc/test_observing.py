"""What an observer is told of calls."""

from dataclasses import dataclass, field

import grpc
import pytest

from fakes.generations import fail, hang
from fakes.registry import FakeRegistry, entry
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import model_service_pb2
from inferd_server.core.errors import queue_full
from inferd_server.core.observer import Unobserved
from support.rpc_world import open_world
from support.streams import eventually

LONG_NAME = "m" * 128


@dataclass
class Calls(Unobserved):
    """An observer that notes calls."""

    ended: list[tuple[str, str, str, str]] = field(default_factory=list)

    def call_ended(self, method: str, model: str, code: str, reason: str, seconds: float) -> None:
        assert 0 <= seconds < 5
        self.ended.append((method.rpartition("/")[2], model, code, reason))


async def test_each_call_is_told_once_with_its_model_as_asked_its_code_and_its_reason() -> None:
    calls = Calls()
    async with open_world(registry=FakeRegistry(entry("tiny", "small"), entry(LONG_NAME)), observer=calls) as world:
        await world.inference.Generate(pb.GenerateRequest(model="small", prompt="x"))
        await world.inference.Generate(pb.GenerateRequest(model=LONG_NAME, prompt="x"))
        world.generations.script = fail(queue_full("tiny", 1))
        with pytest.raises(grpc.aio.AioRpcError):
            await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
        world.generations.script = hang
        stream = world.inference.StreamGenerate(pb.StreamGenerateRequest(model="tiny", prompt="x"))
        await stream.read()
        stream.cancel()
        await eventually(lambda: len(calls.ended) == 4)
        await world.models.GetModel(model_service_pb2.GetModelRequest(name="tiny"))
        await world.models.ListModels(model_service_pb2.ListModelsRequest())
        with pytest.raises(grpc.aio.AioRpcError):
            await world.channel.unary_unary("/inferd.v1.InferenceService/Nothing")(b"")
        await eventually(lambda: len(calls.ended) == 6)
    assert calls.ended == [
        ("Generate", "small", "OK", ""),
        ("Generate", LONG_NAME, "OK", ""),
        ("Generate", "tiny", "RESOURCE_EXHAUSTED", "QUEUE_FULL"),
        ("StreamGenerate", "tiny", "CANCELLED", ""),
        ("GetModel", "tiny", "OK", ""),
        ("ListModels", "", "OK", ""),
    ]
