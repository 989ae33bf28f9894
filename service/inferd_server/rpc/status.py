"""From an error's reason to a gRPC status with google.rpc details: the one place that knows status codes.

The trailers stay below 6 KiB, since longer ones get lost in transit: grpc then replaces the whole status by
RESOURCE_EXHAUSTED "metadata size exceeds soft limit". The status travels twice, as grpc-message (percent-encoded) and
inside grpc-status-details-bin (base64), so that is what is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types that mypy finds
from grpc_status import rpc_status

from inferd_server.core.errors import FieldViolation, InferdError, Reason

from .times import to_duration

DOMAIN = "inferd"
MODEL_RESOURCE_TYPE = "inferd.v1.Model"
MAX_TRAILERS_NBYTES = 5632
"""Half a KiB below the 6 KiB of the contract: room for the keys and for what a proxy adds."""
MAX_MESSAGE_NBYTES = 1024
MAX_FACTS = 16
MAX_KEY_CHARACTERS = 64

_CODE = grpc.StatusCode
CODES: Mapping[Reason, grpc.StatusCode] = MappingProxyType(
    {
        Reason.MODEL_NOT_FOUND: _CODE.NOT_FOUND,
        Reason.MODEL_NOT_LOADED: _CODE.FAILED_PRECONDITION,
        Reason.MODEL_TOO_LARGE: _CODE.FAILED_PRECONDITION,
        Reason.CAPACITY_EXHAUSTED: _CODE.RESOURCE_EXHAUSTED,
        Reason.WAIT_TIMEOUT: _CODE.RESOURCE_EXHAUSTED,
        Reason.QUEUE_FULL: _CODE.RESOURCE_EXHAUSTED,
        Reason.REQUEST_TIMEOUT: _CODE.DEADLINE_EXCEEDED,
        Reason.LOAD_TIMEOUT: _CODE.UNAVAILABLE,
        Reason.DRAIN_TIMEOUT: _CODE.DEADLINE_EXCEEDED,
        Reason.RATE_LIMITED: _CODE.RESOURCE_EXHAUSTED,
        Reason.SLOW_CONSUMER: _CODE.RESOURCE_EXHAUSTED,
        Reason.OUT_OF_MEMORY: _CODE.RESOURCE_EXHAUSTED,
        Reason.PREEMPTED: _CODE.ABORTED,
        Reason.MODEL_UNLOADED: _CODE.ABORTED,
        Reason.PROMPT_TOO_LONG: _CODE.INVALID_ARGUMENT,
        Reason.INVALID_PARAMETER: _CODE.INVALID_ARGUMENT,
        Reason.CAPABILITY_MISSING: _CODE.INVALID_ARGUMENT,
        Reason.MODEL_CORRUPT: _CODE.DATA_LOSS,
        Reason.MODEL_UNSUPPORTED: _CODE.FAILED_PRECONDITION,
        Reason.MODEL_LOAD_FAILED: _CODE.INTERNAL,
        Reason.ENGINE_FAILED: _CODE.INTERNAL,
        Reason.CREDENTIALS_MISSING: _CODE.UNAUTHENTICATED,
        Reason.CREDENTIALS_INVALID: _CODE.UNAUTHENTICATED,
        Reason.METHOD_DENIED: _CODE.PERMISSION_DENIED,
        Reason.MODEL_DENIED: _CODE.PERMISSION_DENIED,
        Reason.STRATEGY_DENIED: _CODE.PERMISSION_DENIED,
        Reason.SERVER_STARTING: _CODE.UNAVAILABLE,
        Reason.SERVER_DRAINING: _CODE.UNAVAILABLE,
        Reason.SERVER_SHUTDOWN: _CODE.UNAVAILABLE,
        Reason.CANCELLED_BY_REQUEST: _CODE.CANCELLED,
        Reason.REQUEST_ID_IN_USE: _CODE.ALREADY_EXISTS,
        Reason.MODEL_PINNED: _CODE.FAILED_PRECONDITION,
        Reason.MODEL_BUSY: _CODE.FAILED_PRECONDITION,
    }
)

_QUOTA_SUBJECTS = {Reason.CAPACITY_EXHAUSTED: "memory_budget", Reason.RATE_LIMITED: "request_rate"}
"""What a QuotaFailure is about where the error does not say."""

# Tried in order until the trailers fit: (violations listed, bytes of each text).
_SHRINKING = ((16, 1280), (16, 512), (16, 256), (8, 256), (8, 128), (4, 96), (1, 64))


def to_grpc_status(error: InferdError) -> grpc.Status:
    """What `context.abort_with_status` takes."""
    return rpc_status.to_status(to_status(error))


def to_status(error: InferdError) -> status_pb2.Status:
    """The google.rpc.Status of an error, small enough for the trailers; each type of detail appears once."""
    status = _build(error, *_SHRINKING[0])
    for violations, text_nbytes in _SHRINKING[1:]:
        if trailers_nbytes(status) <= MAX_TRAILERS_NBYTES:
            break
        status = _build(error, violations, text_nbytes)
    return status


def trailers_nbytes(status: status_pb2.Status) -> int:
    """Bytes that the status takes in the trailers, its two keys not counted."""
    message = status.message.encode()
    percent_encoded = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message)
    serialized: int = status.ByteSize()
    return percent_encoded + (serialized + 2) // 3 * 4


def cut(text: str, limit_nbytes: int) -> str:
    """`text` as UTF-8 of at most `limit_nbytes` bytes (>= 3), cut between characters and marked with an ellipsis."""
    encoded = text.encode(errors="replace")  # surrogates may come from file names
    if len(encoded) <= limit_nbytes:
        return encoded.decode()
    return encoded[: limit_nbytes - 3].decode(errors="ignore") + "…"


def _build(error: InferdError, max_violations: int, text_nbytes: int) -> status_pb2.Status:
    def short(text: str) -> str:
        return cut(text, text_nbytes)

    status = status_pb2.Status(
        code=CODES[error.reason].value[0],
        message=cut(error.message, min(MAX_MESSAGE_NBYTES, 2 * text_nbytes)),
    )
    for detail in _details(error, error.violations[:max_violations], short):
        status.details.add().Pack(detail)
    return status


def _details(error: InferdError, violations: Sequence[FieldViolation], short: Callable[[str], str]) -> list[Message]:
    details: list[Message] = [_error_info(error, short)]
    if error.retry_after_seconds is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=to_duration(error.retry_after_seconds)))
    if violations:
        details.append(_bad_request(violations, short))
    if error.reason is Reason.MODEL_NOT_FOUND:
        details.append(
            error_details_pb2.ResourceInfo(
                resource_type=MODEL_RESOURCE_TYPE,
                resource_name=short(error.resource),
                description="not among the configured models",
            )
        )
    if error.reason in _QUOTA_SUBJECTS:
        subject = error.quota or _QUOTA_SUBJECTS[error.reason]
        details.append(
            error_details_pb2.QuotaFailure(
                violations=[error_details_pb2.QuotaFailure.Violation(subject=subject, description=short(error.message))]
            )
        )
    return details


def _error_info(error: InferdError, short: Callable[[str], str]) -> error_details_pb2.ErrorInfo:
    facts = list(error.facts.items())[:MAX_FACTS]
    return error_details_pb2.ErrorInfo(
        reason=error.reason.value,
        domain=DOMAIN,
        metadata={cut(key, MAX_KEY_CHARACTERS): short(value) for key, value in facts},
    )


def _bad_request(violations: Sequence[FieldViolation], short: Callable[[str], str]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(field=short(v.field), description=short(v.description))
            for v in violations
        ]
    )
