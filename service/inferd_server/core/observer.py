"""Who is told what happens, so that someone can watch; those who tell import no metrics library.

What is a state (how many run, how many bytes) is not told: whoever watches reads the snapshots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .embedding import EmbedRequest
from .generation import GenerationRequest, Timing, Usage
from .reranking import RerankRequest

ModelRequest = GenerationRequest | EmbedRequest | RerankRequest


class GenerationObserver(Protocol):
    """Told the life of one generation request, on the event loop."""

    def loaded(self, load_seconds: float) -> None:
        """Its wait for the model is over; its last `load_seconds` (0: none) were the model's load."""

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """A row was given for the first time, after so long in queues and in its model's load."""

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """Tokens arrived: how long after the last ones (the first: after the request itself), and how many there are
        by now, all together."""

    def interrupted(self) -> None:
        """Its row was taken back for another model's sake."""

    def resumed(self) -> None:
        """It has a row again."""

    def ended(self, usage: Usage, timing: Timing) -> None:
        """It had a row, and has ended in whatever way."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How an RPC ended. Texts of the caller are safe to show.

    Attributes:
        model: the canonical name where it is known, else as the caller wrote it.
        peer: the other end of the connection, `127.0.0.1:40312`.
        code: gRPC's name of the status, `OK`.
        reason: of core.errors.Reason, or "".
        load_generation: of the model that served it; 0: it never had a row.
        usage, finish_reason, preemptions: of a generation request.
    """

    model: str
    request_id: str
    peer: str
    code: str
    reason: str
    load_generation: int = 0
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = ""
    preemptions: int = 0


class CallTrace(GenerationObserver, Protocol):
    """The trace of one RPC, and of the generation request in it."""

    @property
    def trace_id(self) -> str:
        """For logs, in hexadecimal; "" where nothing is traced."""

    def asked(self, request: ModelRequest) -> None:
        """It asks for this."""

    def finish(self, end: CallEnd) -> None:
        """The RPC ended; the last call."""


class Tracer(Protocol):
    """Who traces RPCs."""

    def call(self, method: str, metadata: Mapping[str, str]) -> CallTrace:
        """An RPC began; on the event loop.

        Args:
            method: `/inferd.v1.InferenceService/Generate`.
            metadata: what it says of the trace it belongs to: `traceparent` and `tracestate`, if it has them.
        """


class Observer(Protocol):
    """Told what happens in one server."""

    def call_ended(self, method: str, model: str, code: str, reason: str, seconds: float) -> None:
        """An RPC ended; on the event loop.

        Args:
            method: `/inferd.v1.InferenceService/Generate`.
            model: as the caller wrote it: any text.
            code: gRPC's name of the status, `OK`.
            reason: of core.errors.Reason, or "".
            seconds: from the handler's start to its end.
        """

    def generation(self, model: str) -> GenerationObserver:
        """A generation request for a configured model was taken; on the event loop."""

    def step(self, model: str, seconds: float, rows: int) -> None:
        """An engine ended a step with so many sequences in it; on the engine's own thread."""


class Unobserved:
    """Observer and GenerationObserver for a server that nobody watches."""

    def call_ended(self, method: str, model: str, code: str, reason: str, seconds: float) -> None:
        """See Observer."""

    def generation(self, model: str) -> GenerationObserver:
        """Itself."""
        return self

    def step(self, model: str, seconds: float, rows: int) -> None:
        """See Observer."""

    def loaded(self, load_seconds: float) -> None:
        """See GenerationObserver."""

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """See GenerationObserver."""

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """See GenerationObserver."""

    def interrupted(self) -> None:
        """See GenerationObserver."""

    def resumed(self) -> None:
        """See GenerationObserver."""

    def ended(self, usage: Usage, timing: Timing) -> None:
        """See GenerationObserver."""


UNOBSERVED = Unobserved()


class Untraced(Unobserved):
    """The CallTrace of an RPC that nobody traces."""

    trace_id = ""

    def asked(self, request: ModelRequest) -> None:
        """See CallTrace."""

    def finish(self, end: CallEnd) -> None:
        """See CallTrace."""


UNTRACED = Untraced()


class Both:
    """A GenerationObserver that tells two."""

    def __init__(self, first: GenerationObserver, second: GenerationObserver) -> None:
        self._observers = (first, second)

    def loaded(self, load_seconds: float) -> None:
        """See GenerationObserver."""
        for each in self._observers:
            each.loaded(load_seconds)

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """See GenerationObserver."""
        for each in self._observers:
            each.admitted(queue_seconds, load_seconds)

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """See GenerationObserver."""
        for each in self._observers:
            each.output(gap_seconds, completion_tokens)

    def interrupted(self) -> None:
        """See GenerationObserver."""
        for each in self._observers:
            each.interrupted()

    def resumed(self) -> None:
        """See GenerationObserver."""
        for each in self._observers:
            each.resumed()

    def ended(self, usage: Usage, timing: Timing) -> None:
        """See GenerationObserver."""
        for each in self._observers:
            each.ended(usage, timing)


def both(first: GenerationObserver, second: GenerationObserver) -> GenerationObserver:
    """Who tells both; of two, one that nobody needs is left out."""
    if first in (UNOBSERVED, UNTRACED):
        return second
    return first if second in (UNOBSERVED, UNTRACED) else Both(first, second)
