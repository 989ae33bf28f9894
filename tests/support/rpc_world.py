"""A server of the rpc room over fakes, on a real socket, in tests."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from fakes.embeddings import FakeEmbeddings
from fakes.generations import FakeGenerations
from fakes.registry import FakeRegistry
from fakes.rerankings import FakeRerankings
from inferd.v1 import inference_service_pb2_grpc, model_service_pb2_grpc
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.core.observer import UNOBSERVED, Observer, Tracer
from inferd_server.rpc.server import ListenSettings, Server, ServerInfo, Services
from inferd_server.serving.callers import Callers
from inferd_server.serving.lifecycle import Lifecycle, Phase

MAX_MESSAGE = 16 * 2**20


def server_info(**changes: Any) -> ServerInfo:
    """A server's facts: wait_then_fail with 30 s, and requests may ask for fail, wait and wait_then_fail."""
    facts: dict[str, Any] = {
        "version": "0.1.0",
        "mlx_version": "0.32.4",
        "device": "cpu",
        "start_time": 1_700_000_000.5,
        "policy": ContentionPolicy(Strategy.WAIT_THEN_FAIL, 30.0, 15.0),
        "request_overrides": frozenset({Strategy.FAIL, Strategy.WAIT, Strategy.WAIT_THEN_FAIL}),
        "max_message_bytes": MAX_MESSAGE,
        "max_queue": 1024,
    }
    return ServerInfo(**{**facts, **changes})


@dataclass
class World:
    """A running server, its fakes, and a client's stubs."""

    server: Server
    address: str
    generations: FakeGenerations
    embeddings: FakeEmbeddings
    rerankings: FakeRerankings
    registry: FakeRegistry
    lifecycle: Lifecycle
    channel: grpc.aio.Channel
    inference: Any  # the async stubs exist for type checkers alone
    models: Any
    health: Any


def open_channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel with a connection of its own; without retries."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


@asynccontextmanager
async def open_world(
    *,
    registry: FakeRegistry | None = None,
    info: ServerInfo | None = None,
    address: str = "127.0.0.1:0",
    phase: Phase = Phase.READY,
    clock: Callable[[], float] = time.monotonic,
    observer: Observer = UNOBSERVED,
    tracer: Tracer | None = None,
    callers: Callers | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    **listen: Any,
) -> AsyncIterator[World]:
    """A server with a client; READY unless told otherwise. `listen` are further fields of ListenSettings."""
    generations, embeddings, rerankings = FakeGenerations(), FakeEmbeddings(), FakeRerankings()
    registry, lifecycle = registry or FakeRegistry(), Lifecycle()
    lifecycle.advance(phase)
    services = Services(
        generations, embeddings, rerankings, registry, lifecycle, info or server_info(), callers or Callers()
    )
    listening = ListenSettings(address, MAX_MESSAGE, **listen)
    server = Server(services, listening, clock=clock, observer=observer, tracer=tracer)
    bound = await server.start()
    try:
        async with open_channel(bound, credentials) as channel:
            yield World(
                server,
                bound,
                generations,
                embeddings,
                rerankings,
                registry,
                lifecycle,
                channel,
                inference_service_pb2_grpc.InferenceServiceStub(channel),
                model_service_pb2_grpc.ModelServiceStub(channel),
                health_pb2_grpc.HealthStub(channel),
            )
    finally:
        await server.stop(0.05)
