"""Errors over the wire: every reason becomes its exception with all its facts; errors without details map by code."""

import pickle

import grpc
import pytest

import inferd_client
from fakes.wire_server import Refusal, WireServer
from inferd_client import InferdError
from inferd_client.terminal import explain
from support.both_ways import BothWays

Code = grpc.StatusCode

# The table of docs/semantics.md §8, and the class that a caller catches.
REASONS = [
    ("MODEL_NOT_FOUND", Code.NOT_FOUND, inferd_client.ModelNotFound),
    ("MODEL_NOT_LOADED", Code.FAILED_PRECONDITION, inferd_client.ModelNotLoaded),
    ("MODEL_TOO_LARGE", Code.FAILED_PRECONDITION, inferd_client.ModelTooLarge),
    ("CAPACITY_EXHAUSTED", Code.RESOURCE_EXHAUSTED, inferd_client.CapacityExhausted),
    ("WAIT_TIMEOUT", Code.RESOURCE_EXHAUSTED, inferd_client.WaitTimeout),
    ("QUEUE_FULL", Code.RESOURCE_EXHAUSTED, inferd_client.QueueFull),
    ("REQUEST_TIMEOUT", Code.DEADLINE_EXCEEDED, inferd_client.DeadlineExceeded),
    ("LOAD_TIMEOUT", Code.UNAVAILABLE, inferd_client.Unavailable),
    ("DRAIN_TIMEOUT", Code.DEADLINE_EXCEEDED, inferd_client.DeadlineExceeded),
    ("RATE_LIMITED", Code.RESOURCE_EXHAUSTED, inferd_client.RateLimited),
    ("SLOW_CONSUMER", Code.RESOURCE_EXHAUSTED, inferd_client.SlowConsumer),
    ("OUT_OF_MEMORY", Code.RESOURCE_EXHAUSTED, inferd_client.OutOfMemory),
    ("PREEMPTED", Code.ABORTED, inferd_client.Preempted),
    ("MODEL_UNLOADED", Code.ABORTED, inferd_client.ModelUnloaded),
    ("PROMPT_TOO_LONG", Code.INVALID_ARGUMENT, inferd_client.PromptTooLong),
    ("INVALID_PARAMETER", Code.INVALID_ARGUMENT, inferd_client.InvalidParameter),
    ("CAPABILITY_MISSING", Code.INVALID_ARGUMENT, inferd_client.CapabilityMissing),
    ("MODEL_CORRUPT", Code.DATA_LOSS, inferd_client.ModelLoadFailed),
    ("MODEL_UNSUPPORTED", Code.FAILED_PRECONDITION, inferd_client.ModelLoadFailed),
    ("MODEL_LOAD_FAILED", Code.INTERNAL, inferd_client.ModelLoadFailed),
    ("ENGINE_FAILED", Code.INTERNAL, inferd_client.EngineFailed),
    ("CREDENTIALS_MISSING", Code.UNAUTHENTICATED, inferd_client.Unauthenticated),
    ("CREDENTIALS_INVALID", Code.UNAUTHENTICATED, inferd_client.Unauthenticated),
    ("METHOD_DENIED", Code.PERMISSION_DENIED, inferd_client.PermissionDenied),
    ("MODEL_DENIED", Code.PERMISSION_DENIED, inferd_client.PermissionDenied),
    ("STRATEGY_DENIED", Code.PERMISSION_DENIED, inferd_client.PermissionDenied),
    ("SERVER_STARTING", Code.UNAVAILABLE, inferd_client.Unavailable),
    ("SERVER_DRAINING", Code.UNAVAILABLE, inferd_client.Unavailable),
    ("SERVER_SHUTDOWN", Code.UNAVAILABLE, inferd_client.Unavailable),
    ("CANCELLED_BY_REQUEST", Code.CANCELLED, inferd_client.Cancelled),
    ("REQUEST_ID_IN_USE", Code.ALREADY_EXISTS, inferd_client.RequestIdInUse),
    ("MODEL_PINNED", Code.FAILED_PRECONDITION, inferd_client.ModelBusy),
    ("MODEL_BUSY", Code.FAILED_PRECONDITION, inferd_client.ModelBusy),
]
BARE = [
    (Code.NOT_FOUND, InferdError),
    (Code.FAILED_PRECONDITION, InferdError),
    (Code.UNKNOWN, InferdError),
    (Code.INVALID_ARGUMENT, inferd_client.InvalidParameter),
    (Code.RESOURCE_EXHAUSTED, inferd_client.ResourceExhausted),
    (Code.INTERNAL, inferd_client.EngineFailed),
    (Code.UNIMPLEMENTED, inferd_client.Unimplemented),
    (Code.UNAUTHENTICATED, inferd_client.Unauthenticated),
    (Code.PERMISSION_DENIED, inferd_client.PermissionDenied),
    (Code.ABORTED, inferd_client.Aborted),
    (Code.CANCELLED, inferd_client.Cancelled),
]


async def refused(server: WireServer, client: BothWays, refusal: Refusal) -> InferdError:
    # LoadModel is not retried, so that an UNAVAILABLE row costs no backoff.
    server.script("LoadModel", refusal)
    with pytest.raises(InferdError) as caught:
        await client.call("load", "tiny")
    return caught.value


async def test_every_reason_becomes_its_exception_with_all_its_facts(server: WireServer, client: BothWays) -> None:
    for reason, code, kind in REASONS:
        refusal = Refusal(
            code, reason, f"because of {reason}", {"model": "tiny"}, 1.5, (("sampling.top_p", "in (0, 1]"),)
        )
        error = await refused(server, client, refusal)
        assert (type(error), error.code, error.reason) == (kind, code, reason)
        assert (error.message, error.metadata) == (f"because of {reason}", {"model": "tiny"})
        assert (error.retry_after, error.violations) == (1.5, (("sampling.top_p", "in (0, 1]"),))
        assert isinstance(error.__cause__, grpc.RpcError)


def test_every_reason_of_the_server_is_known_to_the_client() -> None:
    from inferd_server.core.errors import Reason

    assert {reason for reason, _, _ in REASONS} == set(Reason)


async def test_an_error_without_details_maps_by_its_code(server: WireServer, client: BothWays) -> None:
    for code, kind in BARE:
        error = await refused(server, client, Refusal(code, message="plain"))
        assert (type(error), error.code, error.reason, error.message) == (kind, code, "", "plain")
        assert (error.metadata, error.retry_after, error.violations) == ({}, None, ())


async def test_a_reason_of_a_newer_server_maps_by_its_code(server: WireServer, client: BothWays) -> None:
    error = await refused(server, client, Refusal(Code.ABORTED, "SOMETHING_NEW"))
    assert (type(error), error.reason) == (inferd_client.Aborted, "SOMETHING_NEW")


async def test_unreadable_details_do_not_hide_the_error(server: WireServer, client: BothWays) -> None:
    trailers = (("grpc-status-details-bin", b"\xff\xff\xff no Status"),)
    error = await refused(server, client, Refusal(Code.ABORTED, message="plain", trailers=trailers))
    assert (type(error), error.message) == (inferd_client.Aborted, "plain")


async def test_no_server_is_unavailable(connect, unused_tcp_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(inferd_client.Unavailable) as caught:
            await client.call("server_info")
    assert caught.value.reason == ""
    assert "inferd serve" in explain(caught.value, "there", None)


def test_an_error_says_its_reason_and_survives_a_process_border() -> None:
    error = inferd_client.QueueFull(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "too many", {"queue_limit": "4"}, 1.0)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "too many [QUEUE_FULL]"
    assert (type(copy), copy.metadata, copy.retry_after) == (inferd_client.QueueFull, {"queue_limit": "4"}, 1.0)
    assert explain(copy, "there", None) == "too many [QUEUE_FULL]; retry after 1 s"
