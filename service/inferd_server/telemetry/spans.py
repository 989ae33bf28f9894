"""The spans of one RPC: its own, and one child for each stretch of its generation request, without gaps between them.

queue → (load → queue) → prefill → decode, and again from queue after an interruption.
"""

import time

from opentelemetry.trace import Span, StatusCode, Tracer, format_trace_id, set_span_in_context

from inferd_server.core.generation import Timing, Usage
from inferd_server.core.model import Clock
from inferd_server.core.observer import CallEnd, ModelRequest

from . import attributes


class Moments:
    """Nanoseconds since 1970 for one RPC. They follow its monotonic clock: a clock that is set back bends no span."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin = clock()
        self._origin_nanoseconds = time.time_ns()

    def now(self) -> int:
        """The moment now."""
        return self._origin_nanoseconds + int((self._clock() - self._origin) * 1e9)


class Spans:
    """A CallTrace."""

    def __init__(self, tracer: Tracer, span: Span, moments: Moments, *, record_prompts: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._moments = moments
        self._record_prompts = record_prompts
        self._context = set_span_in_context(span)
        self._child: Span | None = None
        self._child_began = 0
        self._has_output = False

    @property
    def trace_id(self) -> str:
        """See CallTrace."""
        return format_trace_id(self._span.get_span_context().trace_id)

    def asked(self, request: ModelRequest) -> None:
        """See CallTrace."""
        self._span.set_attributes(attributes.of_request(request))
        if self._record_prompts:
            self._span.set_attributes(attributes.of_prompt(request))
        self._begin("queue")

    def loaded(self, load_seconds: float) -> None:
        """See GenerationObserver."""
        if load_seconds > 0:
            now = self._moments.now()
            self._begin("load", max(self._child_began, now - int(load_seconds * 1e9)))
            self._begin("queue", now)

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """See GenerationObserver."""
        self._begin_prefill()

    def resumed(self) -> None:
        """See GenerationObserver."""
        self._begin_prefill()

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """See GenerationObserver."""
        if not self._has_output:
            self._has_output = True
            self._begin("decode")

    def interrupted(self) -> None:
        """See GenerationObserver."""
        self._begin("queue")

    def ended(self, usage: Usage, timing: Timing) -> None:
        """See GenerationObserver."""
        self._end_child(self._moments.now())

    def finish(self, end: CallEnd) -> None:
        """See CallTrace."""
        now = self._moments.now()
        self._end_child(now)
        self._span.set_attributes(attributes.of_end(end))
        if end.code in attributes.SERVER_ERRORS:
            self._span.set_status(StatusCode.ERROR, end.reason or end.code)
        self._span.end(now)

    def _begin_prefill(self) -> None:
        self._has_output = False
        self._begin("prefill")

    def _begin(self, name: str, at: int | None = None) -> None:
        """The next stretch begins; the one before ends with it."""
        at = self._moments.now() if at is None else at
        self._end_child(at)
        self._child_began = at
        self._child = self._tracer.start_span(name, context=self._context, start_time=at)

    def _end_child(self, at: int) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(at)
