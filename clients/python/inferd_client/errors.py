"""What a call can end with: one exception class for each thing a caller would do differently.

Every error carries the server's `reason` (google.rpc.ErrorInfo), so a class may stand for several reasons. An error
without details (no server there, a deadline of the caller's, a proxy) is told apart by its status code.
"""

from collections.abc import Iterable
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

_DETAILS_KEY = "grpc-status-details-bin"


class InferdError(Exception):
    """A call that failed. The gRPC error is the `__cause__`; it is None where the client itself refused the call.

    Attributes:
        code: the gRPC status code.
        reason: why, for machines (`CAPACITY_EXHAUSTED`); "" where the error is not inferd's own.
        message: why, for people.
        metadata: facts of the error by key, e.g. `required_bytes`, `completion_tokens`.
        retry_after: seconds after which a retry may succeed; None where the server promises nothing.
        violations: bad fields as (field path, what is allowed).
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        metadata: dict[str, str] | None = None,
        retry_after: float | None = None,
        violations: tuple[tuple[str, str], ...] = (),
    ) -> None:
        # All arguments go to `args`, so that the error survives pickling between processes.
        super().__init__(code, reason, message, metadata, retry_after, violations)
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        self.violations = violations

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code.name}]"


class InvalidParameter(InferdError):
    """The request is wrong; `violations` lists every bad field. A retry is no help."""


class PromptTooLong(InvalidParameter):
    """The prompt leaves no room for output; metadata has `prompt_tokens` and `context_length`."""


class CapabilityMissing(InvalidParameter):
    """The model can't do that; metadata has `capability`."""


class ModelNotFound(InferdError):
    """No model or alias has that name; metadata has `configured_models`."""


class ModelUnavailable(InferdError):
    """The model can't serve this: not resident and not to be loaded, too large, or its load failed."""


class ModelNotLoaded(ModelUnavailable):
    """The model is not resident and the request forbids a load."""


class ModelTooLarge(ModelUnavailable):
    """The model is larger than the whole budget."""


class ModelLoadFailed(ModelUnavailable):
    """The model's files are corrupt, unsupported, or failed to load."""


class ModelBusy(InferdError):
    """An unload `if_idle` found the model pinned or in use."""


class ResourceExhausted(InferdError):
    """The server has too little of something for this request now."""


class CapacityExhausted(ResourceExhausted):
    """No room for the model beside the others; metadata has `blocking_models` and the bytes."""


class WaitTimeout(ResourceExhausted):
    """The strategy's wait for room is over."""


class QueueFull(ResourceExhausted):
    """Too many requests wait already."""


class RateLimited(ResourceExhausted):
    """The caller's rate or quota is used up."""


class SlowConsumer(ResourceExhausted):
    """This reader lagged behind its stream by more than the server buffers."""


class OutOfMemory(ResourceExhausted):
    """The request can never fit in memory beside the model's weights."""


class DeadlineExceeded(InferdError):
    """Time ran out: the caller's, the server's for a request, or the drain's."""


class Aborted(InferdError):
    """The server ended a running request; metadata counts what was produced."""


class Preempted(Aborted):
    """Interrupted for another model and not resumed."""


class ModelUnloaded(Aborted):
    """The model was unloaded by force."""


class Unavailable(InferdError):
    """No server answers, or it starts, drains or stops. The only kind that is retried automatically."""


class EngineFailed(InferdError):
    """The model's engine died, or the server failed in a way nobody expected."""


class Unauthenticated(InferdError):
    """No credentials, or wrong ones."""


class PermissionDenied(InferdError):
    """The credentials, or the server's configuration, do not allow that."""


class Cancelled(InferdError):
    """The call was cancelled: by `cancel(request_id)` or by leaving its stream."""


class RequestIdInUse(InferdError):
    """A request with that id is in flight."""


class Unimplemented(InferdError):
    """This version of the server does not serve that method."""


_BY_REASON: dict[str, type[InferdError]] = {
    "MODEL_NOT_FOUND": ModelNotFound,
    "MODEL_NOT_LOADED": ModelNotLoaded,
    "MODEL_TOO_LARGE": ModelTooLarge,
    "CAPACITY_EXHAUSTED": CapacityExhausted,
    "WAIT_TIMEOUT": WaitTimeout,
    "QUEUE_FULL": QueueFull,
    "REQUEST_TIMEOUT": DeadlineExceeded,
    "LOAD_TIMEOUT": Unavailable,
    "DRAIN_TIMEOUT": DeadlineExceeded,
    "RATE_LIMITED": RateLimited,
    "SLOW_CONSUMER": SlowConsumer,
    "OUT_OF_MEMORY": OutOfMemory,
    "PREEMPTED": Preempted,
    "MODEL_UNLOADED": ModelUnloaded,
    "PROMPT_TOO_LONG": PromptTooLong,
    "INVALID_PARAMETER": InvalidParameter,
    "CAPABILITY_MISSING": CapabilityMissing,
    "MODEL_CORRUPT": ModelLoadFailed,
    "MODEL_UNSUPPORTED": ModelLoadFailed,
    "MODEL_LOAD_FAILED": ModelLoadFailed,
    "ENGINE_FAILED": EngineFailed,
    "CREDENTIALS_MISSING": Unauthenticated,
    "CREDENTIALS_INVALID": Unauthenticated,
    "METHOD_DENIED": PermissionDenied,
    "MODEL_DENIED": PermissionDenied,
    "STRATEGY_DENIED": PermissionDenied,
    "SERVER_STARTING": Unavailable,
    "SERVER_DRAINING": Unavailable,
    "SERVER_SHUTDOWN": Unavailable,
    "CANCELLED_BY_REQUEST": Cancelled,
    "REQUEST_ID_IN_USE": RequestIdInUse,
    "MODEL_PINNED": ModelBusy,
    "MODEL_BUSY": ModelBusy,
}

_BY_CODE: dict[grpc.StatusCode, type[InferdError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidParameter,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.INTERNAL: EngineFailed,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}


_TLS_PROBLEMS = (
    ("Socket closed", "the server may want TLS, or another certificate of ours"),
    ("WRONG_VERSION_NUMBER", "the server speaks no TLS"),
    ("CERTIFICATE_VERIFY_FAILED", "nobody whom we believe (ca) vouches for the server's certificate"),
    ("Hostname Verification Check failed", "the server's certificate is for another host"),
)
"""What gRPC writes, and what it means."""


def from_rpc(error: grpc.RpcError) -> InferdError:
    """The exception for a failed call; use as `raise from_rpc(error) from error`. Never raises by itself."""
    code = error.code()
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.BadRequest()
    _unpack_details(error, info, retry, request)
    return _class_of(code, info.reason)(
        code,
        info.reason,
        _explained(error.details() or code.name),
        dict(info.metadata),
        _seconds(retry),
        tuple((violation.field, violation.description) for violation in request.field_violations),
    )


def connection_problem(message: str) -> str:
    """What most likely keeps a connection from being made, where TLS has to do with it; "" otherwise."""
    if not message.startswith(("connections to all", "failed to connect to all")):
        return ""
    return next((problem for mark, problem in _TLS_PROBLEMS if mark in message), "")


def _explained(message: str) -> str:
    problem = connection_problem(message)
    return f"{message}: {problem}" if problem else message


def invalid_parameter(option: str, description: str) -> InvalidParameter:
    """The client's own refusal of an option, before anything is sent."""
    return InvalidParameter(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_PARAMETER",
        f"{option}: {description}",
        violations=((option, description),),
    )


def unreadable(description: str) -> EngineFailed:
    """An answer of a server that breaks the contract."""
    return EngineFailed(grpc.StatusCode.INTERNAL, "", f"the server's answer is unreadable: {description}")


def _class_of(code: grpc.StatusCode, reason: str) -> type[InferdError]:
    return _BY_REASON.get(reason) or _BY_CODE.get(code, InferdError)


def _unpack_details(
    error: grpc.RpcError,
    *messages: Any,
) -> None:
    # Read here and not by grpc_status.rpc_status: that one raises if a proxy touched the message, and on bytes that
    # are no Status at all. An error whose details are unreadable must still surface as the error it is.
    try:
        for detail in _status(error).details:
            any(detail.Unpack(message) for message in messages)
    except DecodeError:
        return


def _status(error: grpc.RpcError) -> Any:
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailers:
        if key == _DETAILS_KEY:
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def _seconds(retry: Any) -> float | None:
    if not retry.HasField("retry_delay"):
        return None
    return float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)  # its own conversion refuses odd ones
