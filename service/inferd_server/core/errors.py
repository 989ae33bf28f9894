"""Errors that a caller can act on: each knows its reason and its facts; only rpc/status.py knows status codes.

Raise one through the functions below, so that a reason always carries the facts which semantics (docs/semantics.md §8)
promise for it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_LISTED = 16
MAX_ECHO_CHARACTERS = 64


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


def echo(value: object) -> str:
    """A caller's value made safe to repeat: at most 64 characters, no control characters."""
    text = str(value)
    shown = text if len(text) <= MAX_ECHO_CHARACTERS else text[: MAX_ECHO_CHARACTERS - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    shown = ",".join(echo(name) for name in every[:MAX_LISTED])
    return shown if len(every) <= MAX_LISTED else f"{shown} ({len(every)} in all)"


def _size(nbytes: int) -> str:
    """Bytes, and beside them GiB, from about 5 MiB on."""
    return f"{nbytes} bytes ({nbytes / 2**30:.2f} GiB)" if nbytes >= 2**30 // 200 else f"{nbytes} bytes"


def model_not_found(name: str, configured: Iterable[str]) -> InferdError:
    """NOT_FOUND, with the configured names (at most 16, and how many there are)."""
    known = tuple(configured)
    names = _listed(known)
    return InferdError(
        Reason.MODEL_NOT_FOUND,
        f"no model or alias is called {echo(name)!r}; configured: {names or 'none'}",
        facts={"model": echo(name), "configured_models": names},
        resource=echo(name),
        retell=lambda may_name: model_not_found(name, filter(may_name, known)),
    )


def model_not_loaded(model: str) -> InferdError:
    """The request forbids a load and the model is not resident."""
    return InferdError(
        Reason.MODEL_NOT_LOADED,
        f"model {model!r} is not resident and the request sets load_if_needed=false",
        facts={"model": model},
    )


def model_too_large(model: str, required_bytes: int, limit_bytes: int) -> InferdError:
    """The model alone is larger than the budget."""
    return InferdError(
        Reason.MODEL_TOO_LARGE,
        f"model {model!r} needs {_size(required_bytes)}; the budget is {_size(limit_bytes)}",
        facts={"model": model, "required_bytes": required_bytes, "limit_bytes": limit_bytes},
    )


def capacity_exhausted(
    model: str,
    blocking_models: Iterable[str],
    required_bytes: int,
    charged_bytes: int,
    limit_bytes: int,
    retry_after_seconds: float = 1.0,
) -> InferdError:
    """No room now, and the strategy does not wait (or waiting can't help)."""
    others = tuple(blocking_models)
    blocking = _listed(others)
    return InferdError(
        Reason.CAPACITY_EXHAUSTED,
        f"no room for model {model!r}: it needs {_size(required_bytes)}; {_size(charged_bytes)} of "
        f"{_size(limit_bytes)} are charged; in the way: {blocking}",
        facts={
            "model": model,
            "blocking_models": blocking,
            "required_bytes": required_bytes,
            "charged_bytes": charged_bytes,
            "limit_bytes": limit_bytes,
        },
        retry_after_seconds=retry_after_seconds,
        retell=lambda may_name: capacity_exhausted(
            model, filter(may_name, others), required_bytes, charged_bytes, limit_bytes, retry_after_seconds
        ),
    )


def wait_timeout(model: str, waited_seconds: float, queue_position: int) -> InferdError:
    """The strategy's wait is over."""
    waited_ms = round(waited_seconds * 1000)
    return InferdError(
        Reason.WAIT_TIMEOUT,
        f"waited {waited_ms} ms for room for model {model!r}; queue position {queue_position}",
        facts={"model": model, "waited_ms": waited_ms, "queue_position": queue_position},
        retry_after_seconds=1.0,
    )


def queue_full(model: str, queue_limit: int) -> InferdError:
    """Too many requests wait already: for this model, or (model "") in all."""
    where = f"for model {model!r}" if model else "in all"
    return InferdError(
        Reason.QUEUE_FULL,
        f"{queue_limit} requests wait {where}, the most allowed",
        facts={"model": model, "queue_limit": queue_limit},
        retry_after_seconds=1.0,
    )


def rate_limited(key_id: str, limit: str, allowed: int, asked: int, retry_after_seconds: float) -> InferdError:
    """So much per minute is used up, by one key (`key_id` "": by all callers together).

    Args:
        limit: the limit's name, `requests_per_minute`.
        asked: how much was asked for.
        retry_after_seconds: when as much will be let through, if nobody takes any meanwhile.
    """
    return InferdError(
        Reason.RATE_LIMITED,
        f"{limit} of {_owner(key_id)} is {allowed}: {asked} more can be taken in {retry_after_seconds:.3f} s",
        facts={
            "limit": limit,
            "scope": "key" if key_id else "server",
            "allowed": allowed,
            "asked": asked,
            "retry_after_ms": math.ceil(retry_after_seconds * 1000),
        },
        retry_after_seconds=retry_after_seconds,
        quota=_quota(key_id, limit),
    )


def too_many_concurrent(key_id: str, allowed: int) -> InferdError:
    """As many RPCs are in flight as may be; nobody knows when one ends."""
    return InferdError(
        Reason.RATE_LIMITED,
        f"max_concurrent of {_owner(key_id)} is {allowed}: as many requests are in flight",
        facts={"limit": "max_concurrent", "scope": "key" if key_id else "server", "allowed": allowed},
        retry_after_seconds=1.0,
        quota=_quota(key_id, "max_concurrent"),
    )


def _owner(key_id: str) -> str:
    return f"key {key_id!r}" if key_id else "the server"


def _quota(key_id: str, limit: str) -> str:
    return f"key:{key_id}/{limit}" if key_id else f"server/{limit}"


def request_timeout(limit_seconds: float) -> InferdError:
    """The server's own time limit for a request, counted from admission."""
    limit_ms = round(limit_seconds * 1000)
    return InferdError(
        Reason.REQUEST_TIMEOUT, f"the server ends a request after {limit_ms} ms", facts={"limit_ms": limit_ms}
    )


def load_timeout(model: str, limit_seconds: float) -> InferdError:
    """A load took longer than load_timeout_s."""
    return InferdError(
        Reason.LOAD_TIMEOUT,
        f"loading model {model!r} took longer than {limit_seconds:g} s",
        facts={"model": model, "limit_ms": round(limit_seconds * 1000)},
        retry_after_seconds=5.0,
    )


def drain_timeout(model: str, running: int) -> InferdError:
    """UnloadModel's drain is over and requests still run."""
    return InferdError(
        Reason.DRAIN_TIMEOUT,
        f"{running} requests of model {model!r} still run; it serves again",
        facts={"model": model, "running": running},
    )


def slow_consumer(limit_tokens: int) -> InferdError:
    """The reader lags by more than the stream's buffer holds."""
    return InferdError(
        Reason.SLOW_CONSUMER,
        f"the reader lags by more than {limit_tokens} tokens, the most a stream buffers",
        facts={"limit_tokens": limit_tokens},
    )


def reader_stalled(limit_seconds: float) -> InferdError:
    """The reader took nothing for so long that the stream is given up."""
    limit_ms = round(limit_seconds * 1000)
    return InferdError(Reason.SLOW_CONSUMER, f"the reader took nothing for {limit_ms} ms", facts={"limit_ms": limit_ms})


def out_of_memory(model: str, required_bytes: int, limit_bytes: int) -> InferdError:
    """The request can never fit in memory."""
    return InferdError(
        Reason.OUT_OF_MEMORY,
        f"the request needs {required_bytes} bytes beside the weights of model {model!r}; at most {limit_bytes} fit",
        facts={"model": model, "required_bytes": required_bytes, "limit_bytes": limit_bytes},
    )


def preempted(model: str, by_model: str, retry_after_seconds: float = 1.0) -> InferdError:
    """The request was interrupted for another model and is not resumed."""
    return InferdError(
        Reason.PREEMPTED,
        f"interrupted for model {by_model!r}" if by_model else "interrupted for another model",
        facts={"model": model, "by_model": by_model},
        retry_after_seconds=retry_after_seconds,
        retell=lambda may_name: preempted(model, by_model if may_name(by_model) else "", retry_after_seconds),
    )


def model_unloaded(model: str) -> InferdError:
    """The model was force-unloaded under the request."""
    return InferdError(Reason.MODEL_UNLOADED, f"model {model!r} was unloaded by force", facts={"model": model})


def prompt_too_long(field: str, prompt_tokens: int, context_length: int, *, at_least: bool = False) -> InferdError:
    """The prompt leaves no room for one token of output. `at_least`: nobody counted to its end."""
    count = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
    text = f"the prompt has {count} tokens; the context holds {context_length}, one of them for the output"
    return InferdError(
        Reason.PROMPT_TOO_LONG,
        text,
        facts={"prompt_tokens": prompt_tokens, "context_length": context_length},
        violations=[FieldViolation(field, text)],
    )


def prompt_over_limit(field: str, prompt_tokens: int, limit_tokens: int, *, at_least: bool = False) -> InferdError:
    """The prompt is longer than max_prompt_tokens lets it be. `at_least`: nobody counted to its end."""
    count = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
    text = f"the prompt has {count} tokens; max_prompt_tokens is {limit_tokens}"
    return InferdError(
        Reason.PROMPT_TOO_LONG,
        text,
        facts={"prompt_tokens": prompt_tokens, "limit_tokens": limit_tokens, "limit": "max_prompt_tokens"},
        violations=[FieldViolation(field, text)],
    )


def texts_too_long(found: Sequence[FieldViolation], tokens: int, max_tokens: int) -> InferdError:
    """Texts to embed that are longer than the model reads, all of them at once (at most 16 listed, with the total).

    Args:
        found: one for each of these texts, by its field.
        tokens: of the longest one.
        max_tokens: that the model reads.
    """
    shown = "; ".join(f"{v.field}: {v.description}" for v in found[:MAX_LISTED])
    return InferdError(
        Reason.PROMPT_TOO_LONG,
        shown if len(found) <= MAX_LISTED else f"{shown} ({len(found)} texts in all)",
        facts={"prompt_tokens": tokens, "context_length": max_tokens, "texts": len(found)},
        violations=found[:MAX_LISTED],
    )


def invalid_parameter(violations: Sequence[FieldViolation]) -> InferdError:
    """Bad fields, all of them at once (at most 16 listed, with the total)."""
    shown = "; ".join(f"{v.field}: {v.description}" for v in violations[:MAX_LISTED])
    return InferdError(
        Reason.INVALID_PARAMETER,
        shown if len(violations) <= MAX_LISTED else f"{shown} ({len(violations)} violations in all)",
        facts={"violations": len(violations), "field": violations[0].field},
        violations=violations[:MAX_LISTED],
    )


def capability_missing(model: str, capability: str, message: str) -> InferdError:
    """The model (or this server) can't do it; `capability` is lower case: chat, vision, embed, tools, constraints."""
    return InferdError(Reason.CAPABILITY_MISSING, message, facts={"model": model, "capability": capability})


def model_corrupt(model: str, file: str, message: str) -> InferdError:
    """Corrupt or truncated weights or configuration; `file` is a bare file name."""
    return InferdError(Reason.MODEL_CORRUPT, message, facts={"model": model, "file": file})


def model_unsupported(model: str, message: str) -> InferdError:
    """Unknown architecture, missing configuration, or code that would have to be trusted."""
    return InferdError(Reason.MODEL_UNSUPPORTED, message, facts={"model": model})


def model_load_failed(model: str, message: str) -> InferdError:
    """Any other failed load."""
    return InferdError(Reason.MODEL_LOAD_FAILED, message, facts={"model": model})


def engine_failed(model: str) -> InferdError:
    """The engine died or its step failed; the text of the cause stays in the log."""
    return InferdError(Reason.ENGINE_FAILED, f"the engine of model {model!r} failed", facts={"model": model})


def internal_error() -> InferdError:
    """An exception of ours that nobody expected; its text stays in the log."""
    return InferdError(Reason.ENGINE_FAILED, "internal error; the server's log has the cause")


def credentials_missing() -> InferdError:
    """A key is needed and none came."""
    return InferdError(Reason.CREDENTIALS_MISSING, "a key is needed: send the metadata `authorization: Bearer KEY`")


def credentials_invalid() -> InferdError:
    """What came is no key that counts (now)."""
    return InferdError(
        Reason.CREDENTIALS_INVALID,
        "not `Bearer KEY` in the metadata `authorization`, or the key is not valid (any more)",
    )


def method_denied(method: str, group: str) -> InferdError:
    """The key may not call this: it needs `group` among its methods ("": nothing allows it)."""
    return InferdError(
        Reason.METHOD_DENIED,
        f"this key may not call {echo(method)}; it would need {group} among its methods",
        facts={"method": echo(method), "needed": group},
    )


def model_denied(name: str, allowed: Iterable[str]) -> InferdError:
    """The key's models have no such name, whether or not there is one."""
    listed = _listed(allowed)
    return InferdError(
        Reason.MODEL_DENIED,
        f"this key may not use a model called {echo(name)!r}; its models: {listed or 'none'}",
        facts={"model": echo(name), "allowed_models": listed},
    )


def strategy_denied(strategy: str, allowed: Iterable[str]) -> InferdError:
    """The server, or the caller's key, forbids requests to ask for this contention strategy."""
    listed = _listed(allowed)
    return InferdError(
        Reason.STRATEGY_DENIED,
        f"requests may not ask for the strategy {strategy}; allowed are: {listed or 'none'}",
        facts={"strategy": strategy, "allowed_strategies": listed},
    )


def server_starting() -> InferdError:
    """Preloads are still running."""
    return InferdError(Reason.SERVER_STARTING, "the server is starting", retry_after_seconds=1.0)


def server_draining() -> InferdError:
    """The server takes no new work: it is about to stop."""
    return InferdError(Reason.SERVER_DRAINING, "the server is draining", retry_after_seconds=5.0)


def server_shutdown() -> InferdError:
    """The drain is over; the request was cut."""
    return InferdError(Reason.SERVER_SHUTDOWN, "the server stopped before the request ended", retry_after_seconds=5.0)


def cancelled_by_request(request_id: str) -> InferdError:
    """CancelGeneration named this request."""
    return InferdError(Reason.CANCELLED_BY_REQUEST, "cancelled by CancelGeneration", facts={"request_id": request_id})


def request_id_in_use(request_id: str) -> InferdError:
    """A request with this id is in flight."""
    return InferdError(
        Reason.REQUEST_ID_IN_USE,
        f"a request with the id {echo(request_id)!r} is in flight",
        facts={"request_id": echo(request_id)},
    )


def model_pinned(model: str) -> InferdError:
    """IF_IDLE asked for, and the model is pinned."""
    return InferdError(Reason.MODEL_PINNED, f"model {model!r} is pinned", facts={"model": model})


def model_busy(model: str, running: int) -> InferdError:
    """IF_IDLE asked for, and requests run."""
    return InferdError(
        Reason.MODEL_BUSY, f"{running} requests use model {model!r}", facts={"model": model, "running": running}
    )
