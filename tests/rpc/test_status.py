"""The table of statuses, the details, and the size of the trailers."""

import grpc
import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.core import errors
from inferd_server.core.errors import FieldViolation, InferdError, Reason
from inferd_server.rpc.status import CODES, MAX_TRAILERS_NBYTES, cut, to_status, trailers_nbytes
from support.wire import details

TABLE = """
MODEL_NOT_FOUND NOT_FOUND
MODEL_NOT_LOADED FAILED_PRECONDITION
MODEL_TOO_LARGE FAILED_PRECONDITION
CAPACITY_EXHAUSTED RESOURCE_EXHAUSTED
WAIT_TIMEOUT RESOURCE_EXHAUSTED
QUEUE_FULL RESOURCE_EXHAUSTED
REQUEST_TIMEOUT DEADLINE_EXCEEDED
LOAD_TIMEOUT UNAVAILABLE
DRAIN_TIMEOUT DEADLINE_EXCEEDED
RATE_LIMITED RESOURCE_EXHAUSTED
SLOW_CONSUMER RESOURCE_EXHAUSTED
OUT_OF_MEMORY RESOURCE_EXHAUSTED
PREEMPTED ABORTED
MODEL_UNLOADED ABORTED
PROMPT_TOO_LONG INVALID_ARGUMENT
INVALID_PARAMETER INVALID_ARGUMENT
CAPABILITY_MISSING INVALID_ARGUMENT
MODEL_CORRUPT DATA_LOSS
MODEL_UNSUPPORTED FAILED_PRECONDITION
MODEL_LOAD_FAILED INTERNAL
ENGINE_FAILED INTERNAL
CREDENTIALS_MISSING UNAUTHENTICATED
CREDENTIALS_INVALID UNAUTHENTICATED
METHOD_DENIED PERMISSION_DENIED
MODEL_DENIED PERMISSION_DENIED
STRATEGY_DENIED PERMISSION_DENIED
SERVER_STARTING UNAVAILABLE
SERVER_DRAINING UNAVAILABLE
SERVER_SHUTDOWN UNAVAILABLE
CANCELLED_BY_REQUEST CANCELLED
REQUEST_ID_IN_USE ALREADY_EXISTS
MODEL_PINNED FAILED_PRECONDITION
MODEL_BUSY FAILED_PRECONDITION
"""


def test_every_reason_has_the_code_of_the_contract() -> None:
    wanted = dict(line.split() for line in TABLE.split("\n") if line)
    assert {reason.value: code.name for reason, code in CODES.items()} == wanted
    assert set(CODES) == set(Reason)


def test_only_unavailable_is_meant_for_automatic_retry() -> None:
    retried = {reason for reason, code in CODES.items() if code is grpc.StatusCode.UNAVAILABLE}
    assert retried == {
        Reason.LOAD_TIMEOUT,
        Reason.SERVER_STARTING,
        Reason.SERVER_DRAINING,
        Reason.SERVER_SHUTDOWN,
    }


@pytest.mark.parametrize("reason", list(Reason))
def test_every_status_names_reason_and_domain(reason: Reason) -> None:
    status = to_status(InferdError(reason, "why", facts={"model": "m", "count": 3}))
    info = details(status)["ErrorInfo"]

    assert code_pb2.Code.Name(status.code) == CODES[reason].name
    assert (info.reason, info.domain) == (reason.value, "inferd")
    assert dict(info.metadata) == {"model": "m", "count": "3"}


ROWS = [
    (errors.model_not_found("x", ["a", "b"]), {"ResourceInfo"}, {"configured_models"}),
    (errors.model_not_loaded("m"), set(), set()),
    (errors.model_too_large("m", 5, 4), set(), {"required_bytes", "limit_bytes"}),
    (
        errors.capacity_exhausted("m", ["a", "b"], 1, 2, 3),
        {"QuotaFailure", "RetryInfo"},
        {"blocking_models", "required_bytes", "charged_bytes", "limit_bytes"},
    ),
    (errors.wait_timeout("m", 1.5, 2), {"RetryInfo"}, {"waited_ms", "queue_position"}),
    (errors.queue_full("m", 2), {"RetryInfo"}, {"queue_limit"}),
    (errors.request_timeout(3), set(), {"limit_ms"}),
    (errors.load_timeout("m", 3), {"RetryInfo"}, set()),
    (errors.drain_timeout("m", 3), set(), {"running"}),
    (errors.slow_consumer(3), set(), set()),
    (errors.reader_stalled(3), set(), {"limit_ms"}),
    (errors.out_of_memory("m", 3, 2), set(), {"required_bytes", "limit_bytes"}),
    (errors.preempted("m", "b"), {"RetryInfo"}, {"by_model"}),
    (errors.model_unloaded("m"), set(), set()),
    (errors.prompt_too_long("prompt", 3, 2), {"BadRequest"}, {"prompt_tokens", "context_length"}),
    (errors.invalid_parameter([FieldViolation("a", "b")]), {"BadRequest"}, set()),
    (errors.capability_missing("m", "vision", "no"), set(), {"capability"}),
    (errors.model_corrupt("m", "x.safetensors", "no"), set(), {"file"}),
    (errors.engine_failed("m"), set(), set()),
    (errors.server_starting(), {"RetryInfo"}, set()),
    (errors.server_draining(), {"RetryInfo"}, set()),
]


@pytest.mark.parametrize(("error", "types", "keys"), ROWS, ids=lambda row: getattr(row, "reason", None))
def test_each_failure_carries_the_details_of_its_row(error: InferdError, types: set[str], keys: set[str]) -> None:
    found = details(to_status(error))
    assert set(found) == types | {"ErrorInfo"}
    assert keys <= set(found["ErrorInfo"].metadata)


def test_an_unknown_model_is_named_with_the_configured_ones() -> None:
    found = details(to_status(errors.model_not_found("x", ["b", "a"])))
    assert found["ErrorInfo"].metadata["configured_models"] == "a,b"
    assert found["ResourceInfo"].resource_type == "inferd.v1.Model"
    assert found["ResourceInfo"].resource_name == "x"


def test_sixteen_long_names_arrive_whole() -> None:
    names = [f"{i:02}" + "n" * 60 for i in range(40)]
    listed = details(to_status(errors.model_not_found("x", names)))["ErrorInfo"].metadata["configured_models"]
    assert listed == ",".join(names[:16]) + " (40 in all)"


def test_sixteen_usual_violations_arrive_whole() -> None:
    violations = [
        FieldViolation(f"stop.sequences[{i}]", "has 300 characters; at most 256 are allowed") for i in range(40)
    ]
    found = details(to_status(errors.invalid_parameter(violations)))
    assert [v.field for v in found["BadRequest"].field_violations] == [f"stop.sequences[{i}]" for i in range(16)]
    assert found["ErrorInfo"].metadata["violations"] == "40"


texts = st.text(max_size=300) | st.integers(0, 40_000).map(lambda n: "é" * n) | st.integers(0, 40_000).map("x".__mul__)


@given(
    message=texts,
    facts=st.dictionaries(texts, texts, max_size=40),
    violations=st.lists(st.builds(FieldViolation, texts, texts), max_size=40),
    reason=st.sampled_from(list(Reason)),
    resource=texts,
)
def test_hostile_sizes_stay_below_the_trailers_limit(
    message: str, facts: dict[str, str], violations: list[FieldViolation], reason: Reason, resource: str
) -> None:
    error = InferdError(
        reason, message, facts=facts, violations=violations, resource=resource, retry_after_seconds=1e300
    )
    status = to_status(error)
    assert trailers_nbytes(status) <= MAX_TRAILERS_NBYTES
    assert details(status)["ErrorInfo"].reason == reason.value


def test_surrogates_from_file_names_do_not_break_a_status() -> None:
    status = to_status(errors.model_corrupt("m", "bad\udcff.json", "bad\udcff.json is broken"))
    assert status.message == "bad?.json is broken"


@given(st.text(max_size=60), st.integers(3, 40))
def test_a_cut_text_is_a_prefix_within_its_bytes(text: str, limit: int) -> None:
    shortened = cut(text, limit)
    assert len(shortened.encode()) <= limit
    assert text.startswith(shortened.removesuffix("…"))
    assert shortened == text or len(text.encode()) > limit
