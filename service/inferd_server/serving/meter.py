"""What one key, or all callers together, use of their limits. Pure: the time is passed in."""

from inferd_server.core.access import NO_LIMITS, Limits
from inferd_server.core.errors import InferdError, rate_limited, too_many_concurrent

from .quota import Bucket

SERVER = ""
"""The owner of what holds for all callers together."""


class Meter:
    """Use so far, against limits that may change meanwhile. Refusals take nothing.

    Attributes:
        owner: the key's id; SERVER for all callers together.
        running: inference RPCs in flight.
    """

    def __init__(self, owner: str, limits: Limits = NO_LIMITS) -> None:
        self.owner = owner
        self.limits = limits
        self.running = 0
        self._requests = Bucket()
        self._tokens = Bucket()

    def call_refusal(self, now: float) -> InferdError | None:
        """Why one more inference RPC is not taken."""
        limits = self.limits
        if limits.max_concurrent is not None and self.running >= limits.max_concurrent:
            return too_many_concurrent(self.owner, limits.max_concurrent)
        if limits.requests_per_minute is None:
            return None
        return self._refusal("requests_per_minute", limits.requests_per_minute, self._requests, 1, now)

    def begin(self, now: float) -> None:
        """One more is taken; `end` belongs to it."""
        self.running += 1
        if self.limits.requests_per_minute is not None:
            self._requests.take(1, self.limits.requests_per_minute, now)

    def end(self) -> None:
        """One of them ended."""
        self.running -= 1

    def tokens_refusal(self, tokens: int, now: float) -> InferdError | None:
        """Why a prompt of so many tokens is not taken."""
        limit = self.limits.tokens_per_minute
        return None if limit is None else self._refusal("tokens_per_minute", limit, self._tokens, tokens, now)

    def charge(self, tokens: int, now: float) -> None:
        """So many tokens were read or made."""
        if self.limits.tokens_per_minute is not None:
            self._tokens.take(tokens, self.limits.tokens_per_minute, now)

    def _refusal(self, limit: str, per_minute: int, bucket: Bucket, amount: int, now: float) -> InferdError | None:
        seconds = bucket.wait_seconds(amount, per_minute, now)
        return rate_limited(self.owner, limit, per_minute, amount, seconds) if seconds else None
