"""From options to messages, without a server."""

from typing import Any

import pytest

from inferd.v1 import generation_pb2, inference_service_pb2
from inferd_client import InvalidParameter, ToolCall, requests
from inferd_client.options import GenerationOptions, StreamOptions


def built(**options: Any) -> inference_service_pb2.GenerateRequest:
    given = {"prompt": "x", "messages": None, "token_ids": None}
    inputs = {name: options.pop(name, default) for name, default in given.items()}
    return requests.generate("tiny", inputs["prompt"], inputs["messages"], inputs["token_ids"], options)  # type: ignore[arg-type]


EVERY_OPTION: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 3,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "repetition_window": 8,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.75,
    "seed": 2**64 - 1,
    "logit_bias": {5: -1.5},
    "max_tokens": 9,
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "ignore_eos": True,
    "return_token_ids": True,
    "top_logprobs": 0,
    "return_rendered_prompt": True,
    "json_schema": {"type": "object"},
    "request_id": "r",
    "session_id": "s",
    "strategy": "preempt",
    "wait_timeout": 0.25,
    "preempt_after": 2,
    "priority": -7,
    "load_if_needed": False,
    "preemptible": False,
}


def test_every_option_lands_in_its_field() -> None:
    request = built(**EVERY_OPTION)
    sampling, stop, output, scheduling = request.sampling, request.stop, request.output, request.scheduling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 3, 0.125)
    assert (sampling.repetition_penalty, sampling.repetition_window) == (1.5, 8)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-0.5, 0.75)
    assert (sampling.seed, dict(sampling.logit_bias)) == (2**64 - 1, {5: -1.5})
    assert (stop.max_tokens, list(stop.sequences), list(stop.token_ids)) == (9, ["a", "b"], [1, 2])
    assert (stop.ignore_eos, output.token_ids, output.rendered_prompt) == (True, True, True)
    assert output.HasField("top_logprobs")
    assert output.constraint.json_schema == '{"type": "object"}'
    assert (request.request_id, request.session_id) == ("r", "s")
    assert scheduling.contention.strategy == generation_pb2.CONTENTION_STRATEGY_PREEMPT
    assert scheduling.contention.wait_timeout.ToMilliseconds() == 250
    assert scheduling.contention.preempt_after.seconds == 2
    assert (scheduling.priority, scheduling.load_if_needed, scheduling.preemptible) == (-7, False, False)


def test_the_test_above_knows_every_option() -> None:
    elsewhere = {"regex", "lark_grammar", "choice", "tools", "template_variables"}
    assert set(GenerationOptions.__annotations__) == set(EVERY_OPTION) | elsewhere
    assert set(StreamOptions.__annotations__) - set(GenerationOptions.__annotations__) == {
        "waiting_events",
        "coalesce_ms",
    }


def test_an_option_that_is_none_stays_unset() -> None:
    assert built(**dict.fromkeys(EVERY_OPTION)) == built()
    assert not built().HasField("sampling")


def test_stream_and_unary_requests_are_the_same_but_for_the_streams_shape() -> None:
    streamed = requests.stream("tiny", "x", None, None, {**EVERY_OPTION, "coalesce_ms": 0})  # type: ignore[typeddict-item]
    assert streamed.stream.HasField("coalesce_ms")
    streamed.ClearField("stream")
    assert streamed.SerializeToString(deterministic=True) == built(**EVERY_OPTION).SerializeToString(deterministic=True)


def test_one_stop_text_may_be_a_plain_string() -> None:
    assert list(built(stop="END").stop.sequences) == ["END"]


@pytest.mark.parametrize(
    "message",
    [
        ("user", "hi"),
        {"role": "user", "content": "hi"},
        {"role": "user", "content": ["hi"]},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        generation_pb2.ChatMessage(role=generation_pb2.ROLE_USER, parts=[generation_pb2.ContentPart(text="hi")]),
    ],
)
def test_a_message_may_be_written_in_several_ways(message: Any) -> None:
    [chat_message] = built(prompt=None, messages=[message]).chat.messages
    assert chat_message.role == generation_pb2.ROLE_USER
    assert [part.text for part in chat_message.parts] == ["hi"]


def test_tools_and_their_calls_go_with_the_chat() -> None:
    call = generation_pb2.ToolCall(id="c", name="f", arguments_json="{}")
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c", "name": "f"},
    ]
    tools = [{"name": "f", "description": "d", "parameters": {"type": "object"}}]
    chat = built(prompt=None, messages=messages, tools=tools, template_variables={"enable_thinking": False}).chat
    assert (chat.messages[0].tool_calls[0].id, chat.messages[1].tool_call_id) == ("c", "c")
    assert (chat.tools[0].name, chat.tools[0].parameters_json) == ("f", '{"type": "object"}')
    assert chat.template_variables_json == '{"enable_thinking": false}'


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("c", "f", '{"a": 1}'),
        generation_pb2.ToolCall(id="c", name="f", arguments_json='{"a": 1}'),
        {"id": "c", "name": "f", "arguments": {"a": 1}},
        {"id": "c", "name": "f", "arguments_json": '{"a": 1}'},
    ],
)
def test_a_call_goes_back_as_it_came_or_as_a_mapping(call: Any) -> None:
    [message] = built(prompt=None, messages=[{"role": "assistant", "tool_calls": (call,)}]).chat.messages
    assert [(each.id, each.name, each.arguments_json) for each in message.tool_calls] == [("c", "f", '{"a": 1}')]


@pytest.mark.parametrize("call", ["f", ("c", "f"), {"id": "c", "function": {}}, {"id": 1}])
def test_a_call_of_another_form_is_a_type_error_that_names_it(call: Any) -> None:
    with pytest.raises(TypeError, match=r"messages\[0\]\.tool_calls\[0\]"):
        built(prompt=None, messages=[{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None, "messages": []}, "chat"),
        ({"prompt": None, "token_ids": []}, "tokens"),
    ],
)
def test_an_empty_input_is_sent_for_the_server_to_refuse(inputs: dict[str, Any], kind: str) -> None:
    assert built(**inputs).WhichOneof("input") == kind


def test_constraints_are_of_one_kind() -> None:
    assert built(regex="a+").output.constraint.regex == "a+"
    assert built(lark_grammar="start: x").output.constraint.lark_grammar == "start: x"
    assert list(built(choice=["a", "b"]).output.constraint.choice.options) == ["a", "b"]
    with pytest.raises(InvalidParameter, match="choice: excludes regex"):
        built(regex="a", choice=["a"])


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {-1: 0.5}}, "logit_bias"),
        ({"strategy": "bogus"}, "strategy"),
        ({"wait_timeout": float("nan")}, "wait_timeout"),
        ({"wait_timeout": 1e300}, "wait_timeout"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"messages": [("user", "both")]}, "prompt"),
        ({"prompt": None, "token_ids": [-1]}, "token_ids"),
        ({"prompt": None, "messages": [("bogus", "x")]}, "messages[0].role"),
        ({"prompt": None, "messages": [("user", "\udfff")]}, "messages[0].content"),
        ({"json_schema": {"x": float("inf")}}, "json_schema"),
    ],
)
def test_a_value_that_no_message_can_hold_is_refused_by_the_options_name(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        built(**options)
    assert caught.value.violations[0][0] == option
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, "unknown: temprature"),
        ({"waiting_events": True}, "unknown: waiting_events"),
        ({"temperature": "warm"}, "temperature:"),
        ({"stop": 7}, "stop:"),
        ({"choice": "abc"}, "choice:"),
        ({"prompt": None, "token_ids": ["a"]}, "token_ids:"),
        ({"prompt": None, "messages": ["hi"]}, r"messages\[0\]"),
        ({"prompt": None, "messages": [{"role": "user", "text": "hi"}]}, "unknown: text"),
        ({"prompt": None, "messages": [("user", [7])]}, r"messages\[0\].content"),
    ],
)
def test_a_wrong_kind_of_value_is_a_type_error_that_names_it(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        built(**options)


def test_nan_is_the_servers_to_refuse() -> None:
    assert str(built(temperature=float("nan")).sampling.temperature) == "nan"
