"""Callers by their keys: what they may do, what they use, what a reload changes."""

import hashlib
import time
from collections.abc import Callable

import pytest

from inferd_server.core.access import NO_ACCESS, Access, Key, Limits
from inferd_server.core.errors import InferdError, Reason
from inferd_server.serving.callers import Caller, Callers


class Time:
    """A clock that stands until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


def key(key_id: str, secret: str = "", **more: object) -> Key:
    return Key(key_id, hashlib.sha256((secret or f"secret of {key_id}").encode()).digest(), **more)  # type: ignore[arg-type]


def limited(key_id: str, **limits: int) -> Key:
    return key(key_id, access=Access(limits=Limits(**limits)))


def refusal(act: Callable[[], object]) -> InferdError:
    with pytest.raises(InferdError) as refused:
        act()
    return refused.value


def call(caller: Caller) -> None:
    with caller.calling():
        pass


def test_only_valid_keys_authenticate(clock: Time) -> None:
    keys = [key("a"), key("off", disabled=True), key("old", expires=999.9), key("young", expires=1000.1)]
    callers = Callers(keys, clock=clock, wall_clock=clock)
    assert callers.authenticate("secret of a").id == "a"
    assert callers.authenticate("secret of young").id == "young"
    for secret in ("secret of off", "secret of old", "secret of b", ""):
        assert refusal(lambda secret=secret: callers.authenticate(secret)).reason is Reason.CREDENTIALS_INVALID
    clock.now = 1000.1
    assert refusal(lambda: callers.authenticate("secret of young")).reason is Reason.CREDENTIALS_INVALID
    assert not callers.is_valid(Callers([key("young")]).authenticate("secret of young"))


def test_a_key_s_digest_is_not_in_its_repr() -> None:
    assert hashlib.sha256(b"secret of a").hexdigest()[:8] not in repr(key("a"))
    assert "digest" not in repr(key("a"))


def test_without_keys_everybody_may_do_everything_and_with_them_nobody_anything() -> None:
    assert Callers().anonymous.access.sees(("x",))
    assert not Callers().needs_key
    assert Callers([]).needs_key
    assert not Callers([]).anonymous.access.sees(("x",))
    assert Callers([]).anonymous.access is NO_ACCESS


def test_a_reload_changes_rules_at_once_keeps_what_was_used_and_ends_those_that_are_gone(clock: Time) -> None:
    callers = Callers([limited("a", requests_per_minute=2), key("b")], clock=clock, wall_clock=clock)
    a, b = callers.authenticate("secret of a"), callers.authenticate("secret of b")
    call(a)
    call(a)
    callers.replace_keys([key("a", "rotated", access=Access(models=("x",), limits=Limits(requests_per_minute=2)))])
    assert callers.authenticate("rotated") is a
    assert refusal(lambda: callers.authenticate("secret of a")).reason is Reason.CREDENTIALS_INVALID
    assert (a.access.sees(("x",)), a.access.sees(("y",))) == (True, False)
    assert refusal(lambda: call(a)).reason is Reason.RATE_LIMITED
    assert (callers.is_valid(a), callers.is_valid(b)) == (True, False)
    assert b.access is NO_ACCESS
    callers.replace_keys([limited("a", requests_per_minute=3)])
    call(a)


def test_a_reload_under_running_calls_counts_each_end_once(clock: Time) -> None:
    callers = Callers([limited("a", max_concurrent=1)], clock=clock)
    a = callers.authenticate("secret of a")
    with a.calling():
        callers.replace_keys([])
        callers.replace_keys([limited("a", max_concurrent=1)])
        call(callers.authenticate("secret of a"))  # a new one of that id, which runs nothing yet
    call(a)


def test_refusals_name_the_limit_whose_it_is_and_when_to_come_back(clock: Time) -> None:
    callers = Callers([limited("a", requests_per_minute=60)], Limits(max_concurrent=1), clock=clock)
    a = callers.authenticate("secret of a")
    with a.calling():
        refused = refusal(lambda: call(a))
        assert refused.facts == {"limit": "max_concurrent", "scope": "server", "allowed": "1"}
        assert (refused.quota, refused.retry_after_seconds) == ("server/max_concurrent", 1.0)
    for _ in range(59):
        call(a)
    refused = refusal(lambda: call(a))
    assert refused.facts["limit"] == "requests_per_minute"
    assert (refused.facts["scope"], refused.facts["allowed"], refused.quota) == (
        "key",
        "60",
        "key:a/requests_per_minute",
    )
    assert refused.retry_after_seconds is not None
    assert 1 <= refused.retry_after_seconds < 1.0001
    clock.now += refused.retry_after_seconds
    call(a)
    assert refusal(lambda: call(a)).reason is Reason.RATE_LIMITED


def test_a_refused_call_takes_nothing_of_any_limit(clock: Time) -> None:
    callers = Callers([limited("a", requests_per_minute=1), key("b")], Limits(requests_per_minute=2), clock=clock)
    a, b = callers.authenticate("secret of a"), callers.authenticate("secret of b")
    call(a)
    for _ in range(5):
        assert refusal(lambda: call(a)).facts["scope"] == "key"
    call(b)
    assert refusal(lambda: call(b)).facts["scope"] == "server"


def test_tokens_are_checked_for_prompts_and_charged_for_output(clock: Time) -> None:
    callers = Callers([limited("a", tokens_per_minute=600), key("b")], Limits(tokens_per_minute=6000), clock=clock)
    a, b = callers.authenticate("secret of a"), callers.authenticate("secret of b")
    a.take_prompt(500)
    a.charge_output(700)
    refused = refusal(lambda: a.take_prompt(100))
    assert refused.facts["limit"] == "tokens_per_minute"
    assert refused.retry_after_seconds is not None
    assert 70 <= refused.retry_after_seconds < 70.001
    b.take_prompt(4800)
    assert refusal(lambda: b.take_prompt(1)).facts["scope"] == "server"
    clock.now += 70.001
    a.take_prompt(100)


def test_the_lower_of_its_own_and_the_server_s_bound_holds() -> None:
    callers = Callers([limited("a", max_output_tokens=5), key("b")], Limits(max_output_tokens=7, max_prompt_tokens=9))
    a, b = callers.authenticate("secret of a"), callers.authenticate("secret of b")
    assert (a.max_output_tokens, b.max_output_tokens, a.max_prompt_tokens) == (5, 7, 9)
    callers.limit(Limits())
    assert (a.max_output_tokens, b.max_output_tokens, a.max_prompt_tokens) == (5, None, None)


def test_prefix_caches_are_the_key_s_own_unless_shared() -> None:
    apart = Callers([key("a"), key("b")])
    assert apart.authenticate("secret of a").cache_identity == "a"
    shared = Callers([key("a"), key("b")], shares_prefix_cache=True)
    assert shared.authenticate("secret of a").cache_identity == shared.authenticate("secret of b").cache_identity


def test_a_thousand_keys_are_replaced_and_found_fast() -> None:
    """Far below what a person or a request would notice, even on a busy machine."""
    keys = [key(f"k{i}", access=Access(models=(f"model-{i}-*",))) for i in range(1000)]
    callers = Callers(keys)
    began = time.process_time()
    callers.replace_keys(keys)
    assert time.process_time() - began < 0.5
    began = time.process_time()
    for i in range(1000):
        assert callers.authenticate(f"secret of k{i}").access.sees((f"model-{i}-x",))
    assert time.process_time() - began < 0.5


def test_patterns_match_whole_names_and_names_of_endless_length_cost_nothing() -> None:
    access = Access(models=("team-?", "a*z"))
    for names, seen in ((("team-1",), True), (("team-12",), False), (("xteam-1",), False), (("a/b/z",), True)):
        assert access.sees(names) is seen
    assert not access.sees(("a" + "x" * 10_000_000 + "z",))
    assert Access(models=("*",)).sees(("a" * 1000,))
    assert not Access(models=()).sees(("",))
