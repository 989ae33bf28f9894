"""One client's request, from its arrival to its end."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from inferd_server.core.model import ContentionPolicy
from inferd_server.registry.effects import Grant
from inferd_server.registry.lease import LeaseRequest

from .traffic import Arrival, decode_seconds, prefill_seconds


class End(StrEnum):
    """How a request ended."""

    SERVED = "served"
    REFUSED = "refused"
    LEFT = "left"  # its deadline passed


@dataclass(slots=True, eq=False)
class Client:
    """What a request has got so far. A stretch is the time from a grant to its end or interruption.

    Attributes:
        ticket: the ticket it waits with, or the lease it holds.
        stretches: how many it has begun: an event that belongs to an older one comes too late.
        lost_seconds: work that an interruption made it do twice: prefills, and steps that were cut off.
    """

    arrival: Arrival
    policy: ContentionPolicy
    nbytes: int
    ticket: int = 0
    grant: Grant | None = None
    asked_at: float = 0.0
    granted_at: float = 0.0
    done_tokens: int = 0
    stretches: int = 0
    interruptions: int = 0
    wait_seconds: float | None = None  # until its first token could begin
    paused_seconds: float = 0.0
    worked_seconds: float = 0.0
    lost_seconds: float = 0.0
    end: End | None = None

    def request(self, tokens_now: "Callable[[Client], int]") -> LeaseRequest:
        """What it asks for: its first lease, or one to go on."""
        preemptions = () if self.grant is None else self.grant.record.preemptions
        return LeaseRequest(
            self.arrival.model,
            self.policy,
            interrupted=self.interruptions > 0,
            work_done=lambda: tokens_now(self),
            preemptions=preemptions,
        )

    def begin(self, grant: Grant, now: float) -> float:
        """A stretch begins; how long it takes if nobody interrupts it, in seconds."""
        if self.wait_seconds is None:
            self.wait_seconds = now - self.asked_at
        else:
            self.paused_seconds += now - self.asked_at
        self.grant, self.granted_at = grant, now
        self.stretches += 1
        return self._prefill() + (self.arrival.output_tokens - self.done_tokens) * decode_seconds(self.nbytes)

    def tokens_at(self, now: float) -> int:
        """Tokens it has by now."""
        if self.grant is None:
            return self.done_tokens
        decoding = max(0.0, now - self.granted_at - self._prefill())
        return min(self.arrival.output_tokens, self.done_tokens + int(decoding / decode_seconds(self.nbytes) + 1e-6))

    def stop(self, now: float) -> None:
        """The stretch is over; what was to end it comes too late."""
        self.stretches += 1
        tokens = self.tokens_at(now)
        worked = now - self.granted_at
        self.worked_seconds += worked
        if self.interruptions:
            useful = (tokens - self.done_tokens) * decode_seconds(self.nbytes)
            useful += self._prefill() if self.done_tokens == 0 and tokens > 0 else 0.0
            self.lost_seconds += max(0.0, worked - useful)
        self.done_tokens = tokens

    def _prefill(self) -> float:
        return prefill_seconds(self.nbytes, self.arrival.prompt_tokens + self.done_tokens)
