"""Errors that a caller can act on: each knows its reason and its facts; only rpc/status.py knows status codes.

Raise one through the functions below, so that a reason always carries the facts which semantics (docs/semantics.md §8)
promise for it.
"""

from .access import (
    credentials_invalid,
    credentials_missing,
    method_denied,
    model_denied,
    strategy_denied,
)
from .capacity import (
    capacity_exhausted,
    out_of_memory,
    preempted,
    queue_full,
    rate_limited,
    too_many_concurrent,
    wait_timeout,
)
from .error import (
    FieldViolation,
    InferdError,
    MayName,
    Reason,
)
from .models import (
    drain_timeout,
    engine_failed,
    load_timeout,
    model_busy,
    model_corrupt,
    model_load_failed,
    model_not_found,
    model_not_loaded,
    model_pinned,
    model_too_large,
    model_unloaded,
    model_unsupported,
)
from .requests import (
    cancelled_by_request,
    capability_missing,
    invalid_parameter,
    prompt_over_limit,
    prompt_too_long,
    reader_stalled,
    request_id_in_use,
    request_timeout,
    slow_consumer,
    texts_too_long,
)
from .server import (
    internal_error,
    server_draining,
    server_shutdown,
    server_starting,
)
from .wording import (
    MAX_ECHO_CHARACTERS,
    MAX_LISTED,
    echo,
)

__all__ = [
    "MAX_ECHO_CHARACTERS",
    "MAX_LISTED",
    "FieldViolation",
    "InferdError",
    "MayName",
    "Reason",
    "cancelled_by_request",
    "capability_missing",
    "capacity_exhausted",
    "credentials_invalid",
    "credentials_missing",
    "drain_timeout",
    "echo",
    "engine_failed",
    "internal_error",
    "invalid_parameter",
    "load_timeout",
    "method_denied",
    "model_busy",
    "model_corrupt",
    "model_denied",
    "model_load_failed",
    "model_not_found",
    "model_not_loaded",
    "model_pinned",
    "model_too_large",
    "model_unloaded",
    "model_unsupported",
    "out_of_memory",
    "preempted",
    "prompt_over_limit",
    "prompt_too_long",
    "queue_full",
    "rate_limited",
    "reader_stalled",
    "request_id_in_use",
    "request_timeout",
    "server_draining",
    "server_shutdown",
    "server_starting",
    "slow_consumer",
    "strategy_denied",
    "texts_too_long",
    "too_many_concurrent",
    "wait_timeout",
]
