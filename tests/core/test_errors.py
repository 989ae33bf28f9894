"""Errors carry the facts that docs/semantics.md §8 promises, within its bounds."""

import re
from pathlib import Path

from inferd_server.core import errors
from inferd_server.core.errors import FieldViolation, InferdError, Reason, echo
from inferd_server.core.model import Strategy

MANY = [f"model-{i:03d}" for i in range(40)]

# What §8 promises for each reason: the error, its facts, whether a retry may help.
PROMISED: list[tuple[InferdError, set[str], bool]] = [
    (errors.model_not_found("x", MANY), {"model", "configured_models"}, False),
    (errors.model_not_loaded("m"), {"model"}, False),
    (errors.model_too_large("m", 2, 1), {"required_bytes", "limit_bytes"}, False),
    (
        errors.capacity_exhausted("m", ["a", "b"], 3, 2, 4),
        {"blocking_models", "required_bytes", "charged_bytes", "limit_bytes"},
        True,
    ),
    (errors.wait_timeout("m", 1.5, 2), {"waited_ms", "queue_position"}, True),
    (errors.queue_full("m", 256), {"queue_limit"}, True),
    (errors.rate_limited("k", "tokens_per_minute", 60, 5, 1.5), {"limit", "scope", "allowed", "asked"}, True),
    (errors.too_many_concurrent("", 3), {"limit", "scope", "allowed"}, True),
    (errors.prompt_over_limit("prompt", 9, 8), {"prompt_tokens", "limit", "limit_tokens"}, False),
    (errors.credentials_missing(), set(), False),
    (errors.credentials_invalid(), set(), False),
    (errors.method_denied("/a/B", "admin"), {"method", "needed"}, False),
    (errors.model_denied("m", ["a-*"]), {"model", "allowed_models"}, False),
    (errors.request_timeout(600), {"limit_ms"}, False),
    (errors.load_timeout("m", 600), {"model"}, True),
    (errors.drain_timeout("m", 3), {"running"}, False),
    (errors.slow_consumer(4096), {"limit_tokens"}, False),
    (errors.reader_stalled(60), {"limit_ms"}, False),
    (errors.out_of_memory("m", 2, 1), {"required_bytes", "limit_bytes"}, False),
    (errors.preempted("m", "rival"), {"by_model"}, True),
    (errors.model_unloaded("m"), {"model"}, False),
    (errors.prompt_too_long("prompt", 9, 8), {"prompt_tokens", "context_length"}, False),
    (errors.invalid_parameter([FieldViolation("sampling.top_p", "bad")]), {"field", "violations"}, False),
    (errors.capability_missing("m", "vision", "no"), {"capability"}, False),
    (errors.model_corrupt("m", "model.safetensors", "cut"), {"file"}, False),
    (errors.model_unsupported("m", "no"), {"model"}, False),
    (errors.model_load_failed("m", "no"), {"model"}, False),
    (errors.engine_failed("m"), {"model"}, False),
    (errors.internal_error(), set(), False),
    (errors.strategy_denied("preempt", ["wait"]), {"strategy", "allowed_strategies"}, False),
    (errors.server_starting(), set(), True),
    (errors.server_draining(), set(), True),
    (errors.server_shutdown(), set(), True),
    (errors.cancelled_by_request("r"), {"request_id"}, False),
    (errors.request_id_in_use("r"), {"request_id"}, False),
    (errors.model_pinned("m"), {"model"}, False),
    (errors.model_busy("m", 1), {"running"}, False),
]


def test_every_error_carries_the_facts_it_promises() -> None:
    for error, facts, retry_helps in PROMISED:
        assert facts <= error.facts.keys(), error.reason
        assert (error.retry_after_seconds is not None) == retry_helps, error.reason
        assert all(isinstance(value, str) for value in error.facts.values())


def test_every_fact_stands_in_the_row_of_its_reason() -> None:
    """`model` is said of all rows at once."""
    page = (Path(__file__).parents[2] / "docs/semantics.md").read_text()
    rows = [line for line in page.split("\n") if line.startswith("| ") and line.count("|") == 5]
    for error, _, _ in PROMISED:
        (row,) = [line for line in rows if re.search(rf"\b{error.reason}\b", line)]
        missing = {key for key in error.facts if not re.search(rf"\b{key}\b", row)} - {"model"}
        assert missing == set(), error.reason


def test_every_reason_has_a_function_that_raises_it() -> None:
    assert {error.reason for error, _, _ in PROMISED} == set(Reason)


def test_every_error_fits_a_trailer_even_with_many_and_long_names() -> None:
    long_names = ["n" * 128 + str(i) for i in range(1000)]
    for error in (
        errors.model_not_found("x" * 10_000, long_names),
        errors.capacity_exhausted("m" * 128, long_names, 1, 1, 1),
        errors.invalid_parameter([FieldViolation(f"stop.sequences[{i}]", "is empty") for i in range(1000)]),
    ):
        assert len(error.message) + sum(len(k) + len(v) for k, v in error.facts.items()) < 4096


def test_at_most_sixteen_names_are_listed_with_the_total() -> None:
    listed = errors.model_not_found("x", MANY).facts["configured_models"]
    assert listed.count("model-") == errors.MAX_LISTED
    assert listed.endswith("(40 in all)")


def test_at_most_sixteen_violations_are_listed_with_the_total() -> None:
    error = errors.invalid_parameter([FieldViolation(f"f{i}", "bad") for i in range(20)])
    assert len(error.violations) == errors.MAX_LISTED
    assert error.facts["violations"] == "20"
    assert "20 violations in all" in error.message


def test_an_echoed_value_is_cut_and_has_no_control_characters() -> None:
    assert echo("plain") == "plain"
    assert echo("a" * 64) == "a" * 64
    assert echo("a" * 65) == "a" * 63 + "…"
    assert echo("a\x1b[31m\nb") == "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b"


def test_more_facts_leave_the_first_error_as_it_is() -> None:
    first = errors.preempted("m", "rival", retry_after_seconds=2.5)
    second = first.with_facts(completion_tokens=7, request_id="r")
    assert "completion_tokens" not in first.facts
    assert second.facts == {**first.facts, "completion_tokens": "7", "request_id": "r"}
    assert (second.reason, second.message, second.retry_after_seconds) == (first.reason, first.message, 2.5)


def test_violations_and_resource_survive_more_facts() -> None:
    violation = FieldViolation("prompt", "too long")
    error = InferdError(Reason.PROMPT_TOO_LONG, "m", violations=[violation], resource="r").with_facts(extra=1)
    assert (error.violations, error.resource) == ((violation,), "r")


def test_messages_are_for_people() -> None:
    denied = errors.strategy_denied(Strategy.PREEMPT, [])
    assert denied.message == "requests may not ask for the strategy preempt; allowed are: none"
    full = errors.capacity_exhausted("m", ["a"], 3 * 2**30, 512, 4 * 2**30)
    assert "it needs 3221225472 bytes (3.00 GiB); 512 bytes of 4294967296 bytes (4.00 GiB) are charged" in full.message
