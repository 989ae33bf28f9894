"""The contention strategies as pure functions: when a ticket gives up, when it may preempt, where it stands."""

import math
from dataclasses import dataclass

from inferd_server.core.model import ContentionPolicy, Strategy

SECONDS_FOR_EACH_PRIORITY = 10.0
"""A ticket ages by one priority in so many seconds."""

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0

RIVALRY_WINDOW_SECONDS = 60.0
PREEMPTIONS_BY_ONE_RIVAL = 2
"""A request preempted more often than this by one rival within the window is left alone by it."""

_EXPIRING = frozenset({Strategy.WAIT_THEN_FAIL, Strategy.WAIT_THEN_PREEMPT})


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """What the registry keeps to. Bytes and seconds; `drain_busy_after_seconds` 0 turns fairness by draining off."""

    budget_nbytes: int
    policy: ContentionPolicy
    resume_preempted: bool = True
    min_residency_seconds: float = 2.0
    drain_busy_after_seconds: float = 5.0
    load_timeout_seconds: float = 600.0
    ceiling_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Patience:
    """What a ticket's strategy allows, as moments of the machine's clock (infinite: never)."""

    expires_at: float = math.inf
    preempts_at: float = math.inf
    fails_at_once: bool = False
    fails_when_blocked: bool = False

    def joined(self, other: "Patience") -> "Patience":
        """Whatever either allows: for one ticket in the place of two."""
        return Patience(
            expires_at=max(self.expires_at, other.expires_at),
            preempts_at=min(self.preempts_at, other.preempts_at),
            fails_at_once=self.fails_at_once and other.fails_at_once,
            fails_when_blocked=self.fails_when_blocked and other.fails_when_blocked,
        )


def patience(policy: ContentionPolicy, arrived_at: float, *, interrupted: bool = False) -> Patience:
    """The moments of a ticket that arrived at `arrived_at`. An interrupted one just waits, whatever its strategy."""
    if interrupted:
        return Patience()
    strategy = policy.strategy
    preempts_at = math.inf
    if strategy is Strategy.PREEMPT:
        preempts_at = arrived_at
    elif strategy is Strategy.WAIT_THEN_PREEMPT:
        preempts_at = arrived_at + policy.preempt_after_seconds
    return Patience(
        expires_at=arrived_at + policy.wait_timeout_seconds if strategy in _EXPIRING else math.inf,
        preempts_at=preempts_at,
        fails_at_once=strategy is Strategy.FAIL,
        fails_when_blocked=strategy is Strategy.PREEMPT,
    )


def rank(priority: int, arrived_at: float) -> float:
    """A ticket's place in the queue, smallest first.

    Aging is continuous: at any time `priority + waited / 10 s` is larger exactly when this number is smaller, so the
    order of two tickets never changes while they wait.
    """
    return arrived_at - priority * SECONDS_FOR_EACH_PRIORITY


def backoff_seconds(failures: int) -> float:
    """How long a model that failed `failures` times in a row is left alone: 1 s doubling up to 5 min."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 30))


def spared_until(preemptions: tuple[tuple[str, float], ...], rival: str, now: float) -> float:
    """Until when a request may not be preempted by `rival` again (no livelock); a moment <= `now` if it may be."""
    recent = [at for by, at in preemptions if by == rival and at > now - RIVALRY_WINDOW_SECONDS]
    if len(recent) <= PREEMPTIONS_BY_ONE_RIVAL:
        return now
    return sorted(recent)[-1 - PREEMPTIONS_BY_ONE_RIVAL] + RIVALRY_WINDOW_SECONDS
