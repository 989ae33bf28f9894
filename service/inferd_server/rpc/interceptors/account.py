"""What the generation request of a call came to, for the line of its log and its trace."""

from inferd_server.core.generation import Finished, ServedModel, Timing, Usage


class Account:
    """A GenerationObserver that keeps the figures; those of what never happened stay at their defaults.

    Attributes:
        model: the canonical name of the model that served it.
        first_token_seconds: from its arrival to its first token.
        timing: None until it had a row and has ended.
    """

    def __init__(self) -> None:
        self.model = ""
        self.load_generation = 0
        self.finish_reason = ""
        self.preemptions = 0
        self.first_token_seconds: float | None = None
        self.usage = Usage()
        self.timing: Timing | None = None

    def served(self, model: ServedModel) -> None:
        """By this model."""
        self.model, self.load_generation = model.name, model.load_generation

    def finished(self, event: Finished) -> None:
        """Its output has ended."""
        self.finish_reason = event.finish_reason.name.lower()

    # --- GenerationObserver

    def loaded(self, load_seconds: float) -> None:
        """See GenerationObserver."""

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """See GenerationObserver."""

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """See GenerationObserver."""
        if self.first_token_seconds is None:
            self.first_token_seconds = gap_seconds

    def interrupted(self) -> None:
        """See GenerationObserver."""
        self.preemptions += 1

    def resumed(self) -> None:
        """See GenerationObserver."""

    def ended(self, usage: Usage, timing: Timing) -> None:
        """See GenerationObserver."""
        self.usage, self.timing = usage, timing
