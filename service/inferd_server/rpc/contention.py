"""Contention policies on the wire: which a request may ask for, and what its unset fields mean."""

from google.protobuf.duration_pb2 import Duration

from inferd.v1 import generation_pb2 as pb
from inferd_server.core.errors import strategy_denied
from inferd_server.core.model import ContentionPolicy, Strategy

from .enums import STRATEGIES, STRATEGY_VALUES
from .services import ServerInfo
from .times import to_duration, to_seconds
from .violations import Violations


def check_strategy(policy: pb.ContentionPolicy, info: ServerInfo) -> None:
    """Refuse a strategy that is neither on the server's allow-list nor its own. Values that are no strategy are
    left to `check_policy`, since this comes before it is known whether the model exists.

    Raises:
        InferdError: STRATEGY_DENIED.
    """
    asked = STRATEGIES.get(policy.strategy)
    if asked is not None and asked is not info.policy.strategy and asked not in info.request_overrides:
        raise strategy_denied(asked, info.request_overrides)


def check_policy(policy: pb.ContentionPolicy, field: str, info: ServerInfo, violations: Violations) -> None:
    """Everything else about a policy: known strategy, valid times within the server's own."""
    if policy.strategy != pb.CONTENTION_STRATEGY_UNSPECIFIED and policy.strategy not in STRATEGIES:
        violations.add(f"{field}.strategy", f"{policy.strategy} is no known strategy")
        return
    wait, preempt = f"{field}.wait_timeout", f"{field}.preempt_after"
    valid = _check_time(policy, "wait_timeout", wait, violations)
    valid &= _check_time(policy, "preempt_after", preempt, violations)
    if not valid:
        return
    limit, asked = info.policy.wait_timeout_seconds, to_policy(policy, info.policy)
    violations.require(asked.wait_timeout_seconds <= limit, wait, f"at most {limit:g} s, the server's own, is allowed")
    if asked.strategy is Strategy.WAIT_THEN_PREEMPT:
        _check_preempt_after(asked, preempt, info, violations)


def _check_time(policy: pb.ContentionPolicy, name: str, field: str, violations: Violations) -> bool:
    time: Duration = getattr(policy, name)
    return not policy.HasField(name) or violations.check_duration(time, field)


def _check_preempt_after(asked: ContentionPolicy, field: str, info: ServerInfo, violations: Violations) -> None:
    violations.require(
        asked.preempt_after_seconds < asked.wait_timeout_seconds,
        field,
        f"{asked.preempt_after_seconds:g} s must be less than wait_timeout, {asked.wait_timeout_seconds:g} s",
    )
    least = info.policy.preempt_after_seconds
    if asked.strategy not in info.request_overrides and asked.preempt_after_seconds < least:
        # Otherwise the server's own strategy, with its time set to 0, would be the `preempt` that it does not allow.
        violations.add(field, f"at least {least:g} s, the server's own, is allowed")


def to_policy(policy: pb.ContentionPolicy, server: ContentionPolicy) -> ContentionPolicy:
    """A checked policy, its unset fields taken from the server's."""
    return ContentionPolicy(
        strategy=STRATEGIES.get(policy.strategy, server.strategy),
        wait_timeout_seconds=(
            to_seconds(policy.wait_timeout) if policy.HasField("wait_timeout") else server.wait_timeout_seconds
        ),
        preempt_after_seconds=(
            to_seconds(policy.preempt_after) if policy.HasField("preempt_after") else server.preempt_after_seconds
        ),
    )


def from_policy(policy: ContentionPolicy) -> pb.ContentionPolicy:
    """The same policy on the wire."""
    return pb.ContentionPolicy(
        strategy=STRATEGY_VALUES[policy.strategy],
        wait_timeout=to_duration(policy.wait_timeout_seconds),
        preempt_after=to_duration(policy.preempt_after_seconds),
    )
