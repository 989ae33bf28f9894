"""Errors about who asks, and what they may."""

from collections.abc import Iterable

from .error import InferdError, Reason
from .wording import echo, listed


def credentials_missing() -> InferdError:
    """A key is needed and none came."""
    return InferdError(Reason.CREDENTIALS_MISSING, "a key is needed: send the metadata `authorization: Bearer KEY`")


def credentials_invalid() -> InferdError:
    """What came is no key that counts (now)."""
    return InferdError(
        Reason.CREDENTIALS_INVALID,
        "not `Bearer KEY` in the metadata `authorization`, or the key is not valid (any more)",
    )


def method_denied(method: str, group: str) -> InferdError:
    """The key may not call this: it needs `group` among its methods ("": nothing allows it)."""
    return InferdError(
        Reason.METHOD_DENIED,
        f"this key may not call {echo(method)}; it would need {group} among its methods",
        facts={"method": echo(method), "needed": group},
    )


def model_denied(name: str, allowed: Iterable[str]) -> InferdError:
    """The key's models have no such name, whether or not there is one."""
    names = listed(allowed)
    return InferdError(
        Reason.MODEL_DENIED,
        f"this key may not use a model called {echo(name)!r}; its models: {names or 'none'}",
        facts={"model": echo(name), "allowed_models": names},
    )


def strategy_denied(strategy: str, allowed: Iterable[str]) -> InferdError:
    """The server, or the caller's key, forbids requests to ask for this contention strategy."""
    names = listed(allowed)
    return InferdError(
        Reason.STRATEGY_DENIED,
        f"requests may not ask for the strategy {strategy}; allowed are: {names or 'none'}",
        facts={"strategy": strategy, "allowed_strategies": names},
    )
