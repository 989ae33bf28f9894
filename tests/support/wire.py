"""Reading what came over the wire, in tests."""

from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

DETAILS = {
    detail.DESCRIPTOR.full_name: detail
    for detail in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.RetryInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.ResourceInfo,
        error_details_pb2.QuotaFailure,
    )
}


def details(status: status_pb2.Status) -> dict[str, Any]:
    """The details of a status by the short name of their type; each type at most once."""
    found: dict[str, Any] = {}
    for packed in status.details:
        name = packed.TypeName()
        detail = DETAILS[name]()
        assert packed.Unpack(detail)
        short = name.rpartition(".")[2]
        assert short not in found, f"{short} appears twice"
        found[short] = detail
    return found


def error_details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The details of an error that a client caught."""
    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error}"
    return details(status)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Its ErrorInfo.reason; the domain is ours."""
    info = error_details(error)["ErrorInfo"]
    assert info.domain == "inferd"
    return str(info.reason)


def end_of(error: grpc.aio.AioRpcError) -> str:
    """Its reason; of an error that is not ours, its code."""
    has_details = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    return reason_of(error) if has_details else str(error.code().name)


def facts_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """Its ErrorInfo.metadata."""
    return dict(error_details(error)["ErrorInfo"].metadata)


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    """The fields of its BadRequest, in order."""
    return [violation.field for violation in error_details(error)["BadRequest"].field_violations]


def trailers_nbytes(error: grpc.aio.AioRpcError) -> int:
    """Bytes of the error's message and trailing metadata as they travel: percent-encoded and base64."""
    message = (error.details() or "").encode()
    size = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message)
    for key, value in error.trailing_metadata():
        size += len(key) + (len(value) + 2) // 3 * 4
    return size
