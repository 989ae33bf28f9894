"""Who is told what happens, so that someone can watch; those who tell import no metrics library.

What is a state (how many run, how many bytes) is not told: whoever watches reads the snapshots.
"""

from typing import Protocol


class GenerationObserver(Protocol):
    """Told the life of one generation request, on the event loop."""

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """A row was given for the first time, after so long in queues and in its model's load."""

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """Tokens arrived: how long after the last ones (the first: after the request itself), and how many there are
        by now, all together."""

    def interrupted(self) -> None:
        """Its row was taken back for another model's sake."""

    def resumed(self) -> None:
        """It has a row again."""

    def ended(self, prompt_tokens: int, cached_prompt_tokens: int) -> None:
        """It had a row, and has ended in whatever way."""


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

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """See GenerationObserver."""

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """See GenerationObserver."""

    def interrupted(self) -> None:
        """See GenerationObserver."""

    def resumed(self) -> None:
        """See GenerationObserver."""

    def ended(self, prompt_tokens: int, cached_prompt_tokens: int) -> None:
        """See GenerationObserver."""


UNOBSERVED = Unobserved()
