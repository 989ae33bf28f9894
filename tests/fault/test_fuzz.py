"""A hundred thousand requests that nobody would send: each gets its answer or a reason, none of them an internal error.

In process: the bytes go through the real deserializers, layers, checks and conversions of every method; what is below
them is a fake. Over a socket: a few thousand more, down to the engine.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.embeddings import FakeEmbeddings
from fakes.generations import FakeGenerations
from fakes.in_process_server import FakeContext, InProcessServer
from fakes.registry import FakeRegistry, entry
from fakes.rerankings import FakeRerankings
from inferd.v1 import inference_service_pb2, model_service_pb2
from inferd_server.core.model import Capability, EmbedderFacts, RerankerFacts
from inferd_server.rpc.server import ListenSettings, Server, Services
from inferd_server.serving.lifecycle import Lifecycle, Phase
from support.any_message import messages, mutate
from support.contention import Client
from support.rpc_world import MAX_MESSAGE, server_info
from support.servers import ServerProcess
from support.wholeness import Witness
from support.wire import details, end_of

IN_ALL = 100_000
IN_SHORT = 2_000
OVER_A_SOCKET = 3_000
FROM_EACH = 25
FROM_EACH_OVER_A_SOCKET = 3
"""A message as it is, and with bytes of it changed in some way, and another."""
SERVICES = (
    *inference_service_pb2.DESCRIPTOR.services_by_name.values(),
    *model_service_pb2.DESCRIPTOR.services_by_name.values(),
    *health_pb2.DESCRIPTOR.services_by_name.values(),
)
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
GENERATIONS = ("/inferd.v1.InferenceService/Generate", "/inferd.v1.InferenceService/StreamGenerate")
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED}
WATCHES = {"/grpc.health.v1.Health/Watch", "/inferd.v1.ModelService/WatchModels"}
QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@st.composite
def inputs(draw: st.DrawFn, count: int) -> tuple[str, list[bytes]]:
    """A method, and bytes for so many calls of it; those that make generations come as often as all others."""
    path = draw(st.sampled_from(GENERATIONS) | st.sampled_from(list(METHODS)))
    whole = draw(messages(METHODS[path].input_type, draw(st.booleans()))).SerializeToString()
    dice = random.Random(draw(st.integers(0, 2**32)))
    return path, [whole, *(mutate(whole, dice) for _ in range(count - 1))]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[asyncio.Runner, InProcessServer]]:
    """The rpc room over fakes, whose models can do everything."""
    monkeypatch.setattr("grpc.aio.server", InProcessServer)
    everything = {
        "capabilities": frozenset(Capability),
        "context_length": 100_000,
        "vocabulary_size": 300,
    }
    embedder = entry("small", embedder=EmbedderFacts(64, 512, prompts={"x": "x: "}), reranker=RerankerFacts(512))
    registry = FakeRegistry(entry("one", "tiny", **everything), entry("two", **everything), embedder)
    lifecycle = Lifecycle()
    lifecycle.advance(Phase.READY)
    rooms: Any = (FakeGenerations(), FakeEmbeddings(), FakeRerankings(), registry)
    services = Services(*rooms, lifecycle, server_info(), reflection=False)
    with asyncio.Runner() as runner:

        async def make() -> Any:
            return Server(services, ListenSettings("127.0.0.1:0", MAX_MESSAGE))._server

        yield runner, runner.run(make())


def fuzz(wire: tuple[asyncio.Runner, InProcessServer], count: int) -> Counter[str]:
    """So many inputs; each ends well or with a status that tells a reason. Returns how often what came of a method."""
    runner, server = wire
    seen: Counter[str] = Counter()

    @given(case=inputs(FROM_EACH))
    @settings(max_examples=count // FROM_EACH, **QUIET)
    def each(case: tuple[str, list[bytes]]) -> None:
        path, texts = case
        for data in texts:
            context = runner.run(server.call(path, data, leaves=path in WATCHES))
            seen[f"{path.rpartition('/')[2]} {_outcome(context)}"] += 1
            assert context.ended not in NEVER, (path, data, context)

    each()
    print(f"{seen.total()} inputs: {seen}")
    assert seen.total() >= count
    return seen


def _outcome(context: FakeContext) -> str:
    """Its reason; where it has none (health's protocol knows no details), its code."""
    if not context.details:
        return context.ended.name
    return str(details(status_pb2.Status.FromString(context.details))["ErrorInfo"].reason)


def test_two_thousand_odd_requests_get_an_answer_or_a_reason(wire: tuple[asyncio.Runner, InProcessServer]) -> None:
    seen = fuzz(wire, IN_SHORT)
    assert {"Generate OK", "StreamGenerate OK", "Generate INVALID_PARAMETER"} <= set(seen)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_odd_requests_get_an_answer_or_a_reason(
    wire: tuple[asyncio.Runner, InProcessServer],
) -> None:
    seen = fuzz(wire, IN_ALL)
    assert {name for name in seen if name.endswith(" OK")} == {f"{path.rpartition('/')[2]} OK" for path in METHODS}


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(300)
def test_thousands_of_odd_requests_over_a_socket_get_an_answer_or_a_reason(server: ServerProcess) -> None:
    seen: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        witness = runner.run(Witness.of(server, "one", "two"))
        client = runner.run(_connect(server))

        async def ask(path: str, data: bytes) -> str:
            streams = METHODS[path].server_streaming
            call = (client.channel.unary_stream if streams else client.channel.unary_unary)(path)(data, timeout=0.3)
            try:
                if streams:
                    async for _ in call:
                        pass
                else:
                    await call
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name} {end_of(error)}"
            return "OK"

        @given(case=inputs(FROM_EACH_OVER_A_SOCKET))
        @settings(max_examples=OVER_A_SOCKET // FROM_EACH_OVER_A_SOCKET, **QUIET)
        def each(case: tuple[str, list[bytes]]) -> None:
            path, texts = case

            async def together() -> list[str]:
                return await asyncio.gather(*(ask(path, data) for data in texts))

            for data, end in zip(texts, runner.run(together()), strict=True):
                seen[end] += 1
                assert end.split()[0] not in {code.name for code in NEVER}, (path, end, data)

        each()
        print(seen)
        for name in ("one", "two", "slow-load"):
            runner.run(client.load(name, pin=False))  # some were pinned
        runner.run(client.close())
        runner.run(witness.check())


async def _connect(server: ServerProcess) -> Client:
    return Client(server.address)
