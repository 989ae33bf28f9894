"""Errors about a model: that there is none, that it does not load, runs no more, or may not be unloaded."""

from collections.abc import Iterable

from .error import InferdError, Reason
from .wording import echo, listed, size


def model_not_found(name: str, configured: Iterable[str]) -> InferdError:
    """NOT_FOUND, with the configured names (at most 16, and how many there are)."""
    known = tuple(configured)
    names = listed(known)
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
        f"model {model!r} needs {size(required_bytes)}; the budget is {size(limit_bytes)}",
        facts={"model": model, "required_bytes": required_bytes, "limit_bytes": limit_bytes},
    )


def model_corrupt(model: str, file: str, message: str) -> InferdError:
    """Corrupt or truncated weights or configuration; `file` is a bare file name."""
    return InferdError(Reason.MODEL_CORRUPT, message, facts={"model": model, "file": file})


def model_unsupported(model: str, message: str) -> InferdError:
    """Unknown architecture, missing configuration, or code that would have to be trusted."""
    return InferdError(Reason.MODEL_UNSUPPORTED, message, facts={"model": model})


def model_load_failed(model: str, message: str) -> InferdError:
    """Any other failed load."""
    return InferdError(Reason.MODEL_LOAD_FAILED, message, facts={"model": model})


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


def model_unloaded(model: str) -> InferdError:
    """The model was force-unloaded under the request."""
    return InferdError(Reason.MODEL_UNLOADED, f"model {model!r} was unloaded by force", facts={"model": model})


def model_pinned(model: str) -> InferdError:
    """IF_IDLE asked for, and the model is pinned."""
    return InferdError(Reason.MODEL_PINNED, f"model {model!r} is pinned", facts={"model": model})


def model_busy(model: str, running: int) -> InferdError:
    """IF_IDLE asked for, and requests run."""
    return InferdError(
        Reason.MODEL_BUSY, f"{running} requests use model {model!r}", facts={"model": model, "running": running}
    )


def engine_failed(model: str) -> InferdError:
    """The engine died or its step failed; the text of the cause stays in the log."""
    return InferdError(Reason.ENGINE_FAILED, f"the engine of model {model!r} failed", facts={"model": model})
