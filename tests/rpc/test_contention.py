"""Which contention policies a request may ask for."""

import pytest
from google.protobuf.duration_pb2 import Duration

from inferd.v1 import generation_pb2 as gen
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.rpc.contention import check_policy, check_strategy
from inferd_server.rpc.violations import Violations
from support.rpc_world import server_info

PREEMPTING = ContentionPolicy(Strategy.WAIT_THEN_PREEMPT, 30.0, 15.0)


def violations(asked: gen.ContentionPolicy, **info: object) -> list[str]:
    found = Violations()
    check_policy(asked, "c", server_info(**info), found)
    return [violation.field for violation in found.found]


def test_a_strategy_off_the_list_is_denied() -> None:
    with pytest.raises(InferdError) as caught:
        check_strategy(gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_PREEMPT), server_info())
    assert caught.value.reason is Reason.STRATEGY_DENIED


@pytest.mark.parametrize("strategy", [0, gen.CONTENTION_STRATEGY_FAIL, 99])
def test_unset_listed_and_unknown_strategies_are_not_denied(strategy: int) -> None:
    check_strategy(gen.ContentionPolicy(strategy=strategy), server_info())


def test_asking_for_the_servers_own_strategy_overrides_nothing() -> None:
    info = server_info(policy=PREEMPTING, request_overrides=frozenset())
    check_strategy(gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_WAIT_THEN_PREEMPT), info)


def test_the_servers_strategy_can_not_be_sharpened_into_preempt() -> None:
    policy = gen.ContentionPolicy(preempt_after=Duration())
    assert violations(policy, policy=PREEMPTING) == ["c.preempt_after"]
    assert violations(gen.ContentionPolicy(preempt_after=Duration(seconds=20)), policy=PREEMPTING) == []


def test_a_listed_strategy_may_be_sharpened() -> None:
    policy = gen.ContentionPolicy(
        strategy=gen.CONTENTION_STRATEGY_WAIT_THEN_PREEMPT, preempt_after=Duration(), wait_timeout=Duration(nanos=1)
    )
    assert violations(policy, request_overrides=frozenset({Strategy.WAIT_THEN_PREEMPT})) == []


def test_preemption_must_come_before_the_end_of_the_wait_also_with_the_servers_times() -> None:
    listed = {"request_overrides": frozenset(Strategy)}
    strategy = gen.CONTENTION_STRATEGY_WAIT_THEN_PREEMPT
    both = gen.ContentionPolicy(strategy=strategy, wait_timeout=Duration(seconds=5), preempt_after=Duration(seconds=5))
    assert violations(both, **listed) == ["c.preempt_after"]
    assert violations(gen.ContentionPolicy(strategy=strategy, wait_timeout=Duration(seconds=5)), **listed) == [
        "c.preempt_after"
    ]
    # a strategy that never preempts does not care
    assert violations(gen.ContentionPolicy(wait_timeout=Duration(seconds=5)), **listed) == []
