"""Traces for an OpenTelemetry collector: a span for each RPC, and under it where a generation request spent its time.

The SDK's own OTEL_… variables hold (headers, certificates, resource, size of the queue); whether there are traces, and
where they go, is said by the configuration alone. Spans wait in the SDK's bounded queue for a thread that sends them:
a collector that is slow or dead costs spans, never time.
"""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inferd_server.core.model import Clock
from inferd_server.core.observer import UNTRACED, CallTrace, Untraced

from . import attributes
from .spans import Moments, Spans

log = logging.getLogger("inferd.telemetry")

FLUSH_SECONDS = 3.0
"""Longest time for the last spans at the end of the server."""
MAX_ATTRIBUTE_CHARACTERS = 65_536
UNTRACED_SERVICES = ("/grpc.health.v1.", "/grpc.reflection.")
"""Probes come every few seconds, and tell nothing."""


class Tracing:
    """A Tracer; exports while its block runs."""

    def __init__(
        self,
        endpoint: str,
        *,
        version: str,
        sample_ratio: float = 1.0,
        insecure: bool = False,
        record_prompts: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        """See config's tracing section."""
        self._endpoint = endpoint
        self._record_prompts = record_prompts
        self._clock = clock
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=_resource(version),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=MAX_ATTRIBUTE_CHARACTERS),
        )
        exporter = OTLPSpanExporter(endpoint, insecure=insecure or endpoint.startswith("http:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("inferd", version)

    async def __aenter__(self) -> Self:
        log.info("traces go to %s", self._endpoint)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what waits, for at most FLUSH_SECONDS."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed: it took too long
                loop.call_soon_threadsafe(done.set)

        # A daemon: the SDK may wait half a minute for a collector that does not answer.
        threading.Thread(target=end, name="inferd-last-spans", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            log.warning("the last traces were not sent: the collector does not answer")

    def call(self, method: str, metadata: Mapping[str, str]) -> CallTrace:
        """See core.observer.Tracer. A traceparent that is none is ignored."""
        if method.startswith(UNTRACED_SERVICES):
            return UNTRACED
        moments = Moments(self._clock)
        span = self._tracer.start_span(
            method.removeprefix("/"),
            context=self._propagator.extract(metadata, context=Context()),
            kind=SpanKind.SERVER,
            attributes=attributes.of_call(method),
            start_time=moments.now(),
        )
        if not span.is_recording():
            context = span.get_span_context()
            return _Unsampled(format_trace_id(context.trace_id)) if context.is_valid else UNTRACED
        return Spans(self._tracer, span, moments, record_prompts=self._record_prompts)


class _Unsampled(Untraced):
    """An RPC of a trace that is not recorded here; logs still name it."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id


def _resource(version: str) -> Resource:
    """What this server is; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES outrank it."""
    own = {"service.name": "inferd", "service.version": version, "service.instance.id": str(uuid.uuid4())}
    return Resource.create().merge(Resource(own)).merge(OTELResourceDetector().detect())
