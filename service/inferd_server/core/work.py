"""What a scheduler needs to know of the work it hands to an engine and of what comes back, whatever they are."""

from dataclasses import dataclass
from typing import Protocol

from .generation import TokenLogprob


class Work(Protocol):
    """One request for an engine (DecodeRequest, EncodeRequest)."""

    @property
    def context_tokens(self) -> int:
        """Most tokens that the engine takes in together for it: memory and time grow with them."""

    @property
    def total_tokens(self) -> int:
        """All its tokens at its end."""

    @property
    def media_nbytes(self) -> int:
        """Most bytes that looking at its media takes; 0 without any. Time grows with it too."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The most of each that any of some requests comes to."""

    total_tokens: int = 0
    context_tokens: int = 0
    media_nbytes: int = 0

    def with_one_more(self, request: Work) -> "Extent":
        """Of those and `request`."""
        return Extent(
            max(self.total_tokens, request.total_tokens),
            max(self.context_tokens, request.context_tokens),
            max(self.media_nbytes, request.media_nbytes),
        )


class Piece(Protocol):
    """A part of a request's result (Token, Encoded).

    Attributes:
        uid: whose it is.
        ended: "" while more is to come.
        failure: set when the request failed by itself.
        logprob: of a token, where it was asked for.
    """

    uid: int
    ended: str
    failure: str

    @property
    def logprob(self) -> TokenLogprob | None:
        """See above."""
