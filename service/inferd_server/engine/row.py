"""One sequence inside the engine."""

from dataclasses import dataclass, field

from inferd_server.core.generation import DecodeRequest

from .caches import Caches


@dataclass(slots=True, eq=False)
class Row:
    """A sequence from its insertion to its last token.

    Attributes:
        context: prompt and what was emitted before an interruption; its last token is the first decode step's input.
        filled: context tokens in the cache so far.
        caches: of this sequence alone, while its prefill goes on.
        history: the context and every token read since, for penalties.
        first_launch: number of the decode launch that computes the first new token.
        is_joined: whether it decodes (or did), rather than being in prefill.
        is_done: ended, failed or removed; the batch drops it at its next launch.
    """

    uid: int
    request: DecodeRequest
    context: tuple[int, ...] = field(init=False)
    filled: int = 0
    caches: Caches | None = None
    history: list[int] = field(init=False)
    first_launch: int = 0
    is_joined: bool = False
    is_done: bool = False

    def __post_init__(self) -> None:
        self.context = (*self.request.prompt_ids, *self.request.emitted_ids)
        self.history = list(self.context)

    @property
    def unfilled(self) -> int:
        """Context tokens still to prefill; the last one is left to the decode step."""
        return len(self.context) - 1 - self.filled

    def position(self, launch: int) -> int:
        """Output position of the token that a decode launch computes."""
        return len(self.request.emitted_ids) + launch - self.first_launch

    @property
    def end_launch(self) -> int:
        """Number of the first decode launch that is no longer this row's."""
        return self.first_launch + self.request.max_tokens

    def history_before(self, launch: int) -> list[int]:
        """Every token before the input of a decode launch that is about to happen."""
        return self.history[:-1] if launch == self.first_launch else self.history
