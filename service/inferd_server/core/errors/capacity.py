"""Errors about room: memory, places in queues, and what callers may take of a minute."""

import math
from collections.abc import Iterable

from .error import InferdError, Reason
from .wording import listed, size


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
    blocking = listed(others)
    return InferdError(
        Reason.CAPACITY_EXHAUSTED,
        f"no room for model {model!r}: it needs {size(required_bytes)}; {size(charged_bytes)} of "
        f"{size(limit_bytes)} are charged; in the way: {blocking}",
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
