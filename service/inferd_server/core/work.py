"""What a scheduler needs to know of the work it hands to an engine and of what comes back, whatever they are."""

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
