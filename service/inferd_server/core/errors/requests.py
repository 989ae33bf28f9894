"""Errors about one request: what it asks for, how long it takes, how slowly it is read."""

from collections.abc import Sequence

from .error import FieldViolation, InferdError, Reason
from .wording import MAX_LISTED, echo


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


def request_timeout(limit_seconds: float) -> InferdError:
    """The server's own time limit for a request, counted from admission."""
    limit_ms = round(limit_seconds * 1000)
    return InferdError(
        Reason.REQUEST_TIMEOUT, f"the server ends a request after {limit_ms} ms", facts={"limit_ms": limit_ms}
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
