"""What an error is: a reason for machines, a message for people, and its facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Machine-readable reasons, as sent in google.rpc.ErrorInfo."""

    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    MODEL_NOT_LOADED = "MODEL_NOT_LOADED"
    MODEL_TOO_LARGE = "MODEL_TOO_LARGE"
    CAPACITY_EXHAUSTED = "CAPACITY_EXHAUSTED"
    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    QUEUE_FULL = "QUEUE_FULL"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    LOAD_TIMEOUT = "LOAD_TIMEOUT"
    DRAIN_TIMEOUT = "DRAIN_TIMEOUT"
    RATE_LIMITED = "RATE_LIMITED"
    SLOW_CONSUMER = "SLOW_CONSUMER"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    MODEL_UNLOADED = "MODEL_UNLOADED"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    INVALID_PARAMETER = "INVALID_PARAMETER"
    CAPABILITY_MISSING = "CAPABILITY_MISSING"
    MODEL_CORRUPT = "MODEL_CORRUPT"
    MODEL_UNSUPPORTED = "MODEL_UNSUPPORTED"
    MODEL_LOAD_FAILED = "MODEL_LOAD_FAILED"
    ENGINE_FAILED = "ENGINE_FAILED"
    CREDENTIALS_MISSING = "CREDENTIALS_MISSING"
    CREDENTIALS_INVALID = "CREDENTIALS_INVALID"
    METHOD_DENIED = "METHOD_DENIED"
    MODEL_DENIED = "MODEL_DENIED"
    STRATEGY_DENIED = "STRATEGY_DENIED"
    SERVER_STARTING = "SERVER_STARTING"
    SERVER_DRAINING = "SERVER_DRAINING"
    SERVER_SHUTDOWN = "SERVER_SHUTDOWN"
    CANCELLED_BY_REQUEST = "CANCELLED_BY_REQUEST"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    MODEL_PINNED = "MODEL_PINNED"
    MODEL_BUSY = "MODEL_BUSY"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One bad field of a request: its path as in the proto (`sampling.top_p`) and what is allowed."""

    field: str
    description: str


class InferdError(Exception):
    """An error with a reason.

    Attributes:
        reason: why, for machines.
        message: why, for people; every dynamic part is in `facts` too.
        facts: string values by snake_case key, sent as ErrorInfo.metadata.
        retry_after_seconds: when a retry may succeed; None where a retry is no help.
        violations: bad fields, for INVALID_PARAMETER and PROMPT_TOO_LONG.
        resource: the name of the model concerned, for MODEL_NOT_FOUND.
        quota: whose quota is used up (`key:ID/requests_per_minute`), for RATE_LIMITED.
        retell: tells it again with only those names of other models that the given claim holds for; None where it
            names none.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        facts: Mapping[str, str | int] | None = None,
        retry_after_seconds: float | None = None,
        violations: Sequence[FieldViolation] = (),
        resource: str = "",
        quota: str = "",
        retell: "Callable[[MayName], InferdError] | None" = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.facts: dict[str, str] = {key: str(value) for key, value in (facts or {}).items()}
        self.retry_after_seconds = retry_after_seconds
        self.violations = tuple(violations)
        self.resource = resource
        self.quota = quota
        self.retell = retell

    def with_facts(self, **facts: str | int) -> "InferdError":
        """The same error with more facts (a stream adds its counts); `self` is left as it is."""
        return InferdError(
            self.reason,
            self.message,
            facts={**self.facts, **facts},
            retry_after_seconds=self.retry_after_seconds,
            violations=self.violations,
            resource=self.resource,
            quota=self.quota,
            retell=self.retell,
        )

    def told_to(self, may_name: "MayName") -> "InferdError":
        """The same error for a reader who may not see every model; itself where it names no other."""
        if self.retell is None:
            return self
        retold = self.retell(may_name)
        return retold.with_facts(**{**self.facts, **retold.facts})


MayName = Callable[[str], bool]
"""Whether a reader may be told of the model of this name."""
