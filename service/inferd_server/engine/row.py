"""One sequence inside the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferd_server.core.constraints import ConstraintBroken, Matcher
from inferd_server.core.generation import DecodeRequest, Token

from .caches import Caches


@dataclass(slots=True, eq=False)
class Row:
    """A sequence from its insertion to its last token.

    Attributes:
        context: prompt and what was emitted before an interruption; its last token is the first decode step's input.
        filled: context tokens in the cache so far.
        cached_tokens: how many of them came from the prefix cache.
        caches: of this sequence alone, while its prefill goes on.
        history: the context and every token read since, for penalties.
        first_launch: number of the decode launch that computes the first new token; -1 until it joins the batch.
        last_launch: number of the decode launch that computes the last token it may have.
        is_done: ended, failed or removed; the batch drops it at its next launch.
        matcher: what the next token has to satisfy, where the output is constrained.
        failure: why it can't go on although it is not done yet; told with its next token.
        seen: what the model made of its pictures, until its prefill is over.
        rope_delta: how much farther than their number the tokens behind its pictures stand.
        may_be_cut: whether a beginning of its prompt means the same without the rest.
    """

    uid: int
    request: DecodeRequest
    context: tuple[int, ...] = field(init=False)
    filled: int = 0
    cached_tokens: int = 0
    caches: Caches | None = None
    history: list[int] = field(init=False)
    first_launch: int = -1
    last_launch: int = -1
    is_done: bool = False
    matcher: Matcher | None = None
    failure: str = ""
    seen: Any = None
    rope_delta: int = 0
    may_be_cut: bool = True

    def __post_init__(self) -> None:
        self.context = (*self.request.prompt_ids, *self.request.emitted_ids)
        self.history = list(self.context)
        if self.request.grammar is not None:
            self.matcher = self.request.grammar.matcher()
            self._match(self.request.emitted_ids)

    def take(self, token_id: int) -> None:
        """Note a token that was read and is not the last."""
        self.history.append(token_id)
        if self.matcher is not None:
            self._match((token_id,))

    def end(self, token: Token) -> None:
        """Note the last token; the next model call, under way already, may have it as its input."""
        self.is_done = True
        self.failure = token.failure
        self.history.append(token.token_id)

    def _match(self, ids: Sequence[int]) -> None:
        assert self.matcher is not None
        try:
            self.matcher.accept(ids)
        except ConstraintBroken as broken:
            self.failure = str(broken)

    @property
    def unfilled(self) -> int:
        """Context tokens still to prefill; the last one is left to the decode step."""
        return len(self.context) - 1 - self.filled

    @property
    def is_joined(self) -> bool:
        """Whether it decodes (or did), rather than being in prefill."""
        return self.first_launch >= 0

    def join(self, launch: int) -> None:
        """Begin to decode with this launch."""
        self.seen = None
        self.first_launch = launch
        self.last_launch = launch + self.request.max_tokens - 1

    def position(self, launch: int) -> int:
        """Output position of the token that a decode launch computes."""
        return len(self.request.emitted_ids) + launch - self.first_launch

    def history_before(self, launch: int) -> list[int]:
        """Every token before the input of a decode launch that is about to happen."""
        return self.history[: len(self.context) - 1 + launch - self.first_launch]

    def outputs_before(self, launch: int) -> list[int]:
        """Those of them that were generated, an interrupted run's included."""
        return self.history_before(launch)[len(self.request.prompt_ids) :]

    def has_prompt_input(self, launch: int) -> bool:
        """Whether the input of a decode launch is the prompt's last token, so that no output came before."""
        return self.position(launch) == 0
