"""Whatever a server sends, the client makes a result or an error of its own kind of it."""

import random
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from inferd_client import InferdError, decoding, errors
from support.any_message import messages, mutate

QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
EXAMPLES = 100
DECODERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "generation": (inf.GenerateResponse, decoding.generation),
    "event": (inf.StreamGenerateResponse, decoding.event),
    "embedding": (inf.EmbedResponse, decoding.embedding),
    "reranking": (inf.RerankResponse, lambda answer: decoding.reranking(answer, ["a", "b"])),
    "tokens": (inf.TokenizeResponse, decoding.tokens),
    "server_info": (inf.GetServerInfoResponse, decoding.server_info),
    "model": (mod.Model, decoding.model),
    "model_list": (mod.ListModelsResponse, lambda page: decoding.model_list([page])),
    "load_result": (mod.LoadModelResponse, decoding.load_result),
    "unload_result": (mod.UnloadModelResponse, decoding.unload_result),
    "registry_event": (mod.WatchModelsResponse, decoding.registry_event),
    "health": (health_pb2.HealthCheckResponse, decoding.health),
}


@pytest.mark.parametrize("name", DECODERS)
def test_any_answer_of_a_server_becomes_a_result_or_an_error_of_the_client(name: str) -> None:
    kind, decode = DECODERS[name]

    @given(odd=st.booleans(), data=st.data())
    @settings(max_examples=EXAMPLES, **QUIET)
    def each(odd: bool, data: st.DataObject) -> None:
        message = data.draw(messages(kind.DESCRIPTOR, odd))
        try:
            repr(decode(message))
        except InferdError as error:
            str(error)

    each()


class Failure(grpc.RpcError):
    """A failed call with any trailers."""

    def __init__(self, code: grpc.StatusCode, trailers: tuple[tuple[str, str | bytes], ...]) -> None:
        self._code, self._trailers = code, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return None

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._trailers


@st.composite
def statuses(draw: st.DrawFn) -> bytes:
    """A google.rpc.Status with any details, some bytes of which may have changed."""
    status = status_pb2.Status(code=3, message="x")
    kinds = [error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=4)):
        status.details.add().Pack(draw(messages(kind.DESCRIPTOR, draw(st.booleans()))))
    data: bytes = status.SerializeToString()
    return mutate(data, random.Random(draw(st.integers(0, 2**32)))) if draw(st.booleans()) else data


@given(code=st.sampled_from(list(grpc.StatusCode)), data=statuses())
@settings(max_examples=3 * EXAMPLES, **QUIET)
def test_any_details_of_a_status_become_an_error_of_the_client(code: grpc.StatusCode, data: bytes) -> None:
    error = errors.from_rpc(Failure(code, (("grpc-status-details-bin", data), ("other", "x"))))
    assert isinstance(error, InferdError)
    assert str(error)
