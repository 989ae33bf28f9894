"""The tokens of one sequence, on the event loop: a bounded buffer between the scheduler and one reader."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from inferd_server.core.work import Piece, Work

PieceT = TypeVar("PieceT", bound=Piece)

MAX_WAITING_TOKENS = 4096
MAX_WAITING_LOGPROBS = 16 * MAX_WAITING_TOKENS


class Stream(Generic[PieceT]):
    """What `Scheduler.submit` returns. One task reads it, and closes it in a `finally`, whatever happened.

    The reader's side is `admitted`, iteration and `aclose`; the rest is the scheduler's. Tokens wait in `_tokens`;
    the reader gets them once they are released (coalescing), all at once.

    Attributes:
        on_failure: called soon after the stream ended with an error or `Interrupted`, even if the reader is stuck
            elsewhere with tokens still to take.
    """

    def __init__(
        self, number: int, request: Work, coalesce_seconds: float, on_close: Callable[["Stream[Any]"], None]
    ) -> None:
        self.number = number
        self.request = request
        self.coalesce_seconds = coalesce_seconds
        self.uid: int | None = None  # once the engine has it
        self.has_emitted = False
        self.on_failure: Callable[[], None] | None = None
        self._on_close = on_close
        self._tokens: list[PieceT] = []
        self._logprobs = 0
        self._is_released = False
        self._is_admitted = False
        self._is_ended = False
        self._position: int | None = None
        self._told_position: int | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # --- the reader's side

    @property
    def is_admitted(self) -> bool:
        """Whether a row was given to it."""
        return self._is_admitted

    async def admitted(self) -> None:
        """Wait for a row.

        Raises:
            Interrupted: the model was given up for another one while this waited.
            InferdError: the model failed or was unloaded while this waited.
        """
        while self._waits_for_row():
            await self._woken()

    async def next_position(self) -> int | None:
        """How many are ahead of it in the queue, as soon as that is not what was told last; None once it has a row.

        Only for streams submitted with `tell_position`: another one is told nothing but the row.

        Raises:
            Interrupted, InferdError: as `admitted`.
        """
        while self._waits_for_row():
            if self._position != self._told_position:
                self._told_position = self._position
                return self._position
            await self._woken()
        return None

    def __aiter__(self) -> "Stream[PieceT]":
        return self

    async def __anext__(self) -> list[PieceT]:
        """All tokens that wait, in order, at least one. Ends after the token with `ended`.

        Raises:
            Interrupted: after every token emitted before it.
            InferdError: the sequence, or the whole model, failed; or the reader was too slow.
        """
        while not self._is_released:
            if self._is_ended:
                raise self._error or StopAsyncIteration
            await self._woken()
        tokens = self._tokens
        self.discard()
        return tokens

    async def aclose(self) -> None:
        """Give up; idempotent. The row is free for the next at once; the engine drops the sequence at its next step."""
        self.discard()
        self.finish(None)
        self._on_close(self)

    def end(self, error: Exception) -> None:
        """End it from outside: the reader finds `error` behind the tokens that wait. The row is free at once, even if
        the reader is stuck elsewhere."""
        self.finish(error)
        self._on_close(self)

    def _waits_for_row(self) -> bool:
        """Whether a row is still to come; raises if none will."""
        if self._is_ended and not self._is_admitted:
            raise self._error or RuntimeError("the stream was closed while it waited for a row")
        return not self._is_admitted

    async def _woken(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    # --- the scheduler's side

    def admit(self) -> None:
        """A row is its own now."""
        self._is_admitted = True
        self._wake()

    def place(self, position: int) -> None:
        """So many are ahead of it now."""
        self._position = position
        self._wake()

    def push(self, token: PieceT) -> bool:
        """Buffer a token, without release; False once the buffer is past its bound."""
        self._tokens.append(token)
        if token.logprob is not None:
            self._logprobs += 1 + len(token.logprob.top)
        return len(self._tokens) <= MAX_WAITING_TOKENS and self._logprobs <= MAX_WAITING_LOGPROBS

    @property
    def waiting_tokens(self) -> int:
        """How many tokens the buffer holds."""
        return len(self._tokens)

    def release(self) -> None:
        """Let the reader have what waits."""
        if self._tokens:
            self.has_emitted = True
            self._is_released = True
            self._wake()

    def discard(self) -> None:
        """Empty the buffer."""
        self._tokens = []
        self._logprobs = 0
        self._is_released = False

    def finish(self, error: Exception | None) -> None:
        """End: behind the tokens that wait the reader finds `error`, or a normal end. The first end counts."""
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            if error is not None and self.on_failure is not None:
                asyncio.get_running_loop().call_soon(self.on_failure)
        self.release()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


AnyStream = Stream[Any]
