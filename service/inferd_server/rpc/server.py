"""The gRPC server: its options, its services, the layers around them, and how it stops."""

import asyncio
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferd.v1 import inference_service_pb2, inference_service_pb2_grpc, model_service_pb2, model_service_pb2_grpc
from inferd_server.core.errors import credentials_invalid, reader_stalled, server_shutdown
from inferd_server.core.model import Clock
from inferd_server.core.observer import UNOBSERVED, Observer, Tracer
from inferd_server.core.tls import TlsIdentity

from .certificates import Certificates
from .health import Health, HealthServicer
from .inference import InferenceServicer
from .interceptors.access_log import access_log
from .interceptors.around import WATCHES, Around
from .interceptors.authenticating import HEALTH, authenticating, known
from .interceptors.call import Call
from .interceptors.edge import edge
from .interceptors.gate import gate
from .interceptors.identify import identify
from .interceptors.limiting import limiting
from .interceptors.observing import observing
from .interceptors.tracing import tracing
from .library_log import keep_headers_out_of_the_log
from .listening import ListenSettings, bind
from .models import ModelServicer
from .reflection import add_reflection
from .services import ServerInfo, Services

__all__ = ["ListenSettings", "Server", "ServerInfo", "Services"]

KEEPALIVE_SECONDS = 30.0
KEEPALIVE_TIMEOUT_SECONDS = 10.0
"""A client that is frozen or cut off is noticed after both, and what it holds is free again."""
HANDSHAKE_SECONDS = 20.0
"""For TLS and the first words of HTTP/2; who takes longer holds a connection for nothing (grpc: two minutes)."""
MAX_PENDING_CALLS = 8_192
"""Calls that have come and that the event loop has not taken yet; about 10 KiB each."""
ANSWER_SECONDS = 1.0
"""For the statuses of calls that were ended to leave; grpc would cut them without one."""
STALLED_WRITE_SECONDS = 60.0
"""A reader that takes nothing for so long loses its stream: its request would hold its model for ever."""
PROBE_MESSAGE_NBYTES = 4096
SERVICE_NAMES = (
    inference_service_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
)


def server_options(max_message_nbytes: int) -> list[tuple[str, int]]:
    """Channel arguments, each against a trap that was measured."""
    return [
        ("grpc.so_reuseport", 0),  # else a second server on the same port starts without an error
        ("grpc.max_receive_message_length", max_message_nbytes),
        ("grpc.max_send_message_length", max_message_nbytes),
        # Clients that ping every 10 s are cut with too_many_pings otherwise. (The name with `recv` is ignored.)
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # A frozen client's death is noticed by these alone.
        ("grpc.keepalive_time_ms", round(1000 * KEEPALIVE_SECONDS)),
        ("grpc.keepalive_timeout_ms", round(1000 * KEEPALIVE_TIMEOUT_SECONDS)),
        # Measured: the line above alone is not heeded, a ping then waits for its answer for a minute.
        ("grpc.http2.ping_timeout_ms", round(1000 * KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
        # Of more than 1,000 calls that come at once, grpc drops some by chance, with a bare CANCELLED (measured: 191 of
        # 2,000). Our own bounds refuse with a reason; these only keep a flood from taking all memory.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class Server:
    """Serves `services`. There is no bound on concurrent RPCs here: it would refuse health probes too."""

    def __init__(
        self,
        services: Services,
        listen: ListenSettings,
        *,
        clock: Clock = time.monotonic,
        observer: Observer = UNOBSERVED,
        tracer: Tracer | None = None,
    ) -> None:
        keep_headers_out_of_the_log()
        self._listen = listen
        # From the outside in: log, metrics and traces see every outcome; the edge answers what those inside it raise.
        # Whoever asks at the wrong time hears that first, with or without a key; only who has one uses up a limit.
        watched = [] if observer is UNOBSERVED else [observing(observer, clock)]
        traced = [] if tracer is None else [tracing(tracer)]
        identified = [identify] if listen.identity and listen.identity.client_authorities else []
        admitting = [gate(services.lifecycle), authenticating(services.callers, services.registry), limiting]
        self._around = Around(
            [access_log(clock), *watched, *traced, *identified, edge, *admitting],
            is_known=known(services.callers),
            clock=clock,
        )
        self._callers = services.callers
        self._certificates = None if listen.identity is None else Certificates(listen.identity)
        self._server = grpc.aio.server(interceptors=[self._around], options=server_options(listen.max_message_nbytes))
        health = HealthServicer(Health(services.lifecycle, services.registry))
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        self._probe = None if listen.probe_address is None else self._probe_server(health)
        inference_service_pb2_grpc.add_InferenceServiceServicer_to_server(
            InferenceServicer(services, clock=clock), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(services, clock=clock), self._server)
        if services.reflection:
            add_reflection(self._server, SERVICE_NAMES)
        self._address = ""
        self.probe_address = ""
        self._watchdog: asyncio.Task[None] | None = None

    def _probe_server(self, health: HealthServicer) -> grpc.aio.Server:
        """What answers health checks alone: the prober has no certificate, and learns nothing else."""
        server = grpc.aio.server(interceptors=[self._around], options=server_options(PROBE_MESSAGE_NBYTES))
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        return server

    async def start(self) -> str:
        """Open the port, and that of the probes (then `probe_address` says where); returns the bound address with the
        real port.

        Raises:
            OSError: the address can't be bound; the message names it.
            ValueError: it is no address.
        """
        credentials = None if self._certificates is None else self._certificates.credentials()
        self._address = await bind(
            self._server, self._listen.address, credentials=credentials, socket_mode=self._listen.socket_mode
        )
        if self._probe is not None and self._listen.probe_address is not None:
            self.probe_address = await bind(self._probe, self._listen.probe_address)
            await self._probe.start()
        await self._server.start()
        self._watchdog = asyncio.create_task(self._end_stalled_streams())
        return self._address

    def present(self, identity: TlsIdentity) -> None:
        """Show new connections this identity; for a server that was given one."""
        if self._certificates is not None:
            self._certificates.present(identity)

    def end_watches(self) -> None:
        """End the open watches, which would hold `stop` for its whole grace, and each that still comes."""
        self._around.end_watches(server_shutdown())

    def end_revoked_watches(self) -> None:
        """End the watches whose key is not valid any more, but those of health, which needs none; requests that run may
        finish."""
        self._around.end_where(self._is_revoked_watch, credentials_invalid())

    def _is_revoked_watch(self, call: Call) -> bool:
        is_watch = call.method in WATCHES and call.service != HEALTH
        return is_watch and call.caller is not None and not self._callers.is_valid(call.caller)

    async def stop(self, grace_seconds: float) -> int:
        """Close the port, end the watches, let running calls end within the grace, end the rest with SERVER_SHUTDOWN;
        then wait (as long again, at least a second) until the handlers' `finally` blocks have run, which grpc does
        not. Returns how many handlers have not ended. A second call does no harm."""
        self.end_watches()
        if self._watchdog is not None:
            self._watchdog.cancel()
        servers = [self._server] if self._probe is None else [self._server, self._probe]
        stopping = asyncio.gather(*(server.stop(grace_seconds + ANSWER_SECONDS) for server in servers))
        if await self._around.finished(grace_seconds):
            self._around.end_where(lambda call: True, server_shutdown())
        await stopping
        return await self._around.finished(max(grace_seconds, 1.0))

    async def _end_stalled_streams(self) -> None:
        while True:
            await asyncio.sleep(STALLED_WRITE_SECONDS / 4)
            self.end_revoked_watches()  # a key may have expired
            self._around.end_stalled(STALLED_WRITE_SECONDS, reader_stalled(STALLED_WRITE_SECONDS))
