"""A collector: takes OTLP over a real gRPC socket and keeps the spans."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """What it has been sent.

    Attributes:
        spans: all of them, in the order of their arrival.
        requests: the messages they came in.
        metadata: that of the calls.
    """

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Span] = []
        self.requests: list[pb.ExportTraceServiceRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self._arrived = threading.Condition()

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> pb.ExportTraceServiceResponse:
        with self._arrived:
            self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._arrived.notify_all()
        return pb.ExportTraceServiceResponse()

    def find(self, claim: Callable[[Span], bool], seconds: float = 20) -> Span:
        """The first span that a claim holds for; waits for it. Blocking."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while (found := next(filter(claim, self.spans), None)) is None:
                left = deadline - time.monotonic()
                assert left > 0, f"no such span among {[span.name for span in self.spans]}"
                self._arrived.wait(left)
            return found

    def children(self, parent: Span) -> list[Span]:
        """Those right under a span, in the order of their beginnings. They are sent before it."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


def facts(span: Span) -> dict[str, Any]:
    """Its attributes as plain values."""
    return {each.key: _plain(each.value) for each in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait(5)
