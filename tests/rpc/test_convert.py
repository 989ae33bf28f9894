"""Messages to words and back again."""

import json
import math
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import model_service_pb2
from inferd_server.core.constraints import Constraint, ConstraintKind
from inferd_server.core.generation import (
    Delta,
    Finished,
    FinishReason,
    SamplingChoices,
    ServedModel,
    Started,
    StopChoices,
    Timing,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
    Waiting,
    WaitState,
)
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.rpc import convert, enums
from inferd_server.rpc.contention import from_policy, to_policy
from inferd_server.rpc.times import is_valid, to_duration, to_seconds, to_timestamp
from inferd_server.rpc.validate_chat import check_chat
from inferd_server.rpc.violations import Violations

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
uint32 = st.integers(0, 2**32 - 1)
seconds = st.floats(0, 1e6, allow_nan=False)
texts = st.text(max_size=20)
SERVER = ContentionPolicy(Strategy.WAIT_THEN_FAIL, 30.0, 15.0)
LIMITS = MediaLimits()


@given(
    st.builds(
        SamplingChoices,
        temperature=st.none() | floats,
        top_p=st.none() | floats,
        top_k=st.none() | uint32,
        min_p=st.none() | floats,
        repetition_penalty=st.none() | floats,
        repetition_window=st.none() | uint32,
        presence_penalty=st.none() | floats,
        frequency_penalty=st.none() | floats,
        seed=st.none() | st.integers(0, 2**64 - 1),
        logit_bias=st.dictionaries(uint32, floats, max_size=4),
    )
)
def test_sampling_survives_the_wire_with_unset_fields_unset(choices: SamplingChoices) -> None:
    fields = {name: getattr(choices, name) for name in choices.__slots__}
    message = gen.SamplingOptions(**fields)
    assert convert.to_sampling(gen.SamplingOptions.FromString(message.SerializeToString())) == choices


@given(st.none() | uint32, st.lists(texts, max_size=3), st.lists(uint32, max_size=3), st.booleans())
def test_stopping_survives_the_wire(
    max_tokens: int | None, sequences: list[str], token_ids: list[int], ignore_eos: bool
) -> None:
    message = gen.StopOptions(max_tokens=max_tokens, sequences=sequences, token_ids=token_ids, ignore_eos=ignore_eos)
    assert convert.to_stop(message) == StopChoices(max_tokens, tuple(sequences), tuple(token_ids), ignore_eos)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(list(enums.ROLES)), st.lists(texts, min_size=1, max_size=3)), min_size=1),
    st.dictionaries(texts, json_values, max_size=3),
)
def test_a_chat_survives_the_wire(turns: list[tuple[int, list[str]]], variables: dict[str, object]) -> None:
    message = gen.ChatInput(
        messages=[
            gen.ChatMessage(role=role, parts=[gen.ContentPart(text=text) for text in parts]) for role, parts in turns
        ],
        template_variables_json=json.dumps(variables),
    )
    chat = convert.to_chat(message, check_chat(message, LIMITS, Violations()), LIMITS)
    assert [(enums.ROLE_VALUES[m.role], list(m.text_parts)) for m in chat.messages] == turns
    assert chat.template_variables == variables


def test_generate_and_stream_generate_become_the_same_request() -> None:
    fields = {"request_id": "r", "model": "m", "prompt": "p", "stop": gen.StopOptions(max_tokens=3), "session_id": "s"}
    unary = convert.to_generation_request(pb.GenerateRequest(**fields), {}, SERVER, LIMITS)
    stream = convert.to_generation_request(pb.StreamGenerateRequest(**fields), {}, SERVER, LIMITS)
    assert unary == stream


def test_an_unset_coalesce_time_is_not_zero() -> None:
    unset = convert.to_generation_request(pb.StreamGenerateRequest(stream=pb.StreamOptions()), {}, SERVER, LIMITS)
    zero = convert.to_generation_request(
        pb.StreamGenerateRequest(stream=pb.StreamOptions(coalesce_ms=0)), {}, SERVER, LIMITS
    )
    some = convert.to_generation_request(
        pb.StreamGenerateRequest(stream=pb.StreamOptions(coalesce_ms=25)), {}, SERVER, LIMITS
    )
    assert (unset.coalesce_seconds, zero.coalesce_seconds, some.coalesce_seconds) == (None, 0.0, 0.025)


@pytest.mark.parametrize(
    ("message", "constraint"),
    [
        ({"json_schema": "{}"}, Constraint(ConstraintKind.JSON_SCHEMA, "{}")),
        ({"regex": "a+"}, Constraint(ConstraintKind.REGEX, "a+")),
        ({"lark_grammar": 'start: "x"'}, Constraint(ConstraintKind.LARK_GRAMMAR, 'start: "x"')),
        ({"choice": {"options": ["a", "b"]}}, Constraint(ConstraintKind.CHOICE, options=("a", "b"))),
    ],
)
def test_a_constraint_of_each_kind_is_understood(message: dict[str, Any], constraint: Constraint) -> None:
    assert convert.to_output(gen.OutputOptions(constraint=gen.OutputConstraint(**message))).constraint == constraint
    assert convert.to_output(gen.OutputOptions()).constraint is None


logprobs = st.builds(TokenLogprob, uint32, floats, st.lists(st.tuples(uint32, floats), max_size=3).map(tuple))


calls = st.builds(ToolCallDelta, uint32, st.builds(ToolCall, texts, texts, texts))
deltas = st.builds(
    Delta,
    texts,
    texts,
    st.lists(uint32, max_size=3),
    st.lists(logprobs, max_size=3),
    uint32,
    st.lists(calls, max_size=3),
)


@given(uint32, deltas)
def test_a_delta_survives_the_wire(sequence: int, delta: Delta) -> None:
    wire = convert.from_event(sequence, delta).SerializeToString()
    message = pb.StreamGenerateResponse.FromString(wire)
    got = message.delta

    assert message.WhichOneof("event") == "delta"
    assert message.sequence == sequence
    assert (
        Delta(
            got.text,
            got.reasoning,
            list(got.token_ids),
            [TokenLogprob(p.token_id, p.logprob, tuple((t.token_id, t.logprob) for t in p.top)) for p in got.logprobs],
            got.completion_tokens,
            [ToolCallDelta(c.index, ToolCall(c.id, c.name, c.arguments_json)) for c in got.tool_calls],
        )
        == delta
    )


@given(st.sampled_from(list(FinishReason)), texts, st.builds(Usage, uint32, uint32, uint32), uint32)
def test_an_end_survives_the_wire(reason: FinishReason, stop: str, usage: Usage, preemptions: int) -> None:
    finished = Finished(reason, stop, usage, Timing(0.1, 0.2, 0.3, 0.4, 1.0), preemptions)
    got = convert.from_event(1, finished).finished

    assert gen.FinishReason.Name(got.finish_reason) == f"FINISH_REASON_{reason.name}"
    assert (got.matched_stop, got.preemptions) == (stop, preemptions)
    assert Usage(got.usage.prompt_tokens, got.usage.cached_prompt_tokens, got.usage.completion_tokens) == usage
    assert [to_seconds(getattr(got.timing, name)) for name in ("queue", "load", "prefill", "decode", "total")] == [
        0.1,
        0.2,
        0.3,
        0.4,
        1.0,
    ]


def test_a_start_and_a_wait_become_their_messages() -> None:
    start = convert.from_event(0, Started("r", ServedModel("m", "rev", 7), 5, "<s>hi")).started
    assert start == pb.StreamGenerateResponse.Started(
        request_id="r",
        model=gen.ServedModel(name="m", revision="rev", load_generation=7),
        prompt_tokens=5,
        rendered_prompt="<s>hi",
    )
    wait = convert.from_event(0, Waiting(WaitState.PREEMPTED)).waiting
    assert wait.state == pb.WAIT_STATE_PREEMPTED


def test_every_enum_value_of_the_contract_has_a_word() -> None:
    pairs = [
        (gen.ContentionStrategy, enums.STRATEGY_VALUES),
        (gen.Role, enums.ROLE_VALUES),
        (gen.FinishReason, enums.FINISH_REASON_VALUES),
        (pb.WaitState, enums.WAIT_STATE_VALUES),
        (model_service_pb2.ModelState, enums.MODEL_STATE_VALUES),
        (model_service_pb2.ModelCapability, enums.CAPABILITY_VALUES),
    ]
    for wire, words in pairs:
        assert {0, *words.values()} == set(wire.values())


@given(st.builds(ContentionPolicy, st.sampled_from(list(Strategy)), seconds, seconds))
def test_a_policy_survives_the_wire(policy: ContentionPolicy) -> None:
    back = to_policy(from_policy(policy), SERVER)
    assert back.strategy is policy.strategy
    assert math.isclose(back.wait_timeout_seconds, policy.wait_timeout_seconds, abs_tol=1e-9)
    assert math.isclose(back.preempt_after_seconds, policy.preempt_after_seconds, abs_tol=1e-9)


def test_unset_fields_of_a_policy_are_the_servers() -> None:
    assert to_policy(gen.ContentionPolicy(), SERVER) == SERVER
    timed = gen.ContentionPolicy(wait_timeout=Duration(seconds=2))
    assert to_policy(timed, SERVER) == ContentionPolicy(Strategy.WAIT_THEN_FAIL, 2.0, 15.0)


@given(st.floats(0, 315_576_000_000))
def test_durations_keep_their_nanoseconds_and_stay_valid(value: float) -> None:
    duration = to_duration(value)
    assert is_valid(duration)
    assert math.isclose(to_seconds(duration), value, abs_tol=1e-9)


def test_durations_that_break_protobufs_rules_are_not_valid() -> None:
    assert is_valid(Duration(seconds=-1, nanos=-5))
    assert not is_valid(Duration(seconds=1, nanos=-5))
    assert not is_valid(Duration(seconds=1, nanos=10**9))
    assert not is_valid(Duration(seconds=400_000_000_000))


def test_a_timestamp_is_a_moment_in_unix_time() -> None:
    assert to_timestamp(1_700_000_000.25).ToNanoseconds() == 1_700_000_000_250_000_000


def test_media_keep_their_place_among_the_text_and_their_path() -> None:
    image = gen.Blob(mime_type="image/png", data=b"\x89PNG")
    parts = [gen.ContentPart(text="a"), gen.ContentPart(image=image), gen.ContentPart(text="b")]
    chat = gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=parts)])
    limits = MediaLimits(max_images=1)
    prompt = convert.to_chat(chat, {}, limits)
    blob = Blob(MediaKind.IMAGE, "image/png", b"\x89PNG", "chat.messages[0].parts[1].image")
    assert prompt.messages[0].parts == ("a", blob, "b")
    assert (prompt.blobs, prompt.media_limits) == ((blob,), limits)
