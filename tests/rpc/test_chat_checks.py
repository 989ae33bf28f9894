"""The checks of a chat."""

import pytest

from inferd.v1 import generation_pb2 as gen
from inferd_server.core.media import MediaLimits
from inferd_server.rpc.json_text import parse_object
from inferd_server.rpc.validate_chat import MAX_MESSAGES, MAX_PARTS, check_chat
from inferd_server.rpc.violations import Violations


def text(*texts: str, role: int = gen.ROLE_USER, **fields: object) -> gen.ChatMessage:
    return gen.ChatMessage(role=role, parts=[gen.ContentPart(text=t) for t in texts], **fields)


LIMITS = MediaLimits(max_images=2, max_image_nbytes=4)


def image(data: bytes = b"data", role: int = gen.ROLE_USER, **fields: object) -> gen.ChatMessage:
    blob = gen.Blob(mime_type="image/png", data=data)
    return gen.ChatMessage(role=role, parts=[gen.ContentPart(image=blob)], **fields)


def violations(*messages: gen.ChatMessage, **fields: object) -> list[str]:
    found = Violations()
    check_chat(gen.ChatInput(messages=messages, **fields), LIMITS, found)
    return [violation.field for violation in found.found]


CALL = gen.ToolCall(id="c1", name="f", arguments_json='{"x": 1}')


def test_a_chat_with_tools_and_their_results_is_fine() -> None:
    assert (
        violations(
            text("s", role=gen.ROLE_SYSTEM),
            text("", "hi"),
            gen.ChatMessage(role=gen.ROLE_ASSISTANT, tool_calls=[CALL]),
            text("", role=gen.ROLE_TOOL, tool_call_id="c1"),
            tools=[gen.Tool(name="f", parameters_json='{"type": "object"}'), gen.Tool(name="g")],
            template_variables_json='{"a": "\\ud83d\\ude00"}',
        )
        == []
    )


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([], ["chat.messages"]),
        ([text("")], ["chat.messages"]),
        ([text("x")] * (MAX_MESSAGES + 1), ["chat.messages"]),
        ([text(*["x"] * MAX_PARTS)] * 65, ["chat.messages"]),
        ([text(*["x"] * (MAX_PARTS + 1))], ["chat.messages[0].parts"]),
        ([text("x"), text("x", role=gen.ROLE_UNSPECIFIED)], ["chat.messages[1].role"]),
        ([text("x", role=77)], ["chat.messages[0].role"]),
        ([text("x"), text()], ["chat.messages[1].parts"]),
        ([text("x", name="n" * 257)], ["chat.messages[0].name"]),
        ([gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart()])], ["chat.messages[0].parts[0]"]),
        (
            [gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(image=gen.Blob())])],
            ["chat.messages[0].parts[0].image.mime_type", "chat.messages[0].parts[0].image.data"],
        ),
        ([text("x", tool_calls=[CALL])], ["chat.messages[0].tool_calls"]),
        ([text("x", tool_call_id="c1")], ["chat.messages[0].tool_call_id"]),
        ([text("x", role=gen.ROLE_TOOL)], ["chat.messages[0].tool_call_id"]),
        ([text("x", role=gen.ROLE_TOOL, tool_call_id="c1")], ["chat.messages[0].tool_call_id"]),
        (
            [text("x", role=gen.ROLE_ASSISTANT, tool_calls=[gen.ToolCall(name="a b", arguments_json="[")])],
            [
                "chat.messages[0].tool_calls[0].id",
                "chat.messages[0].tool_calls[0].name",
                "chat.messages[0].tool_calls[0].arguments_json",
            ],
        ),
    ],
)
def test_a_bad_message_is_named_by_its_path(messages: list[gen.ChatMessage], fields: list[str]) -> None:
    assert violations(*messages) == fields


def test_bad_tools_are_named_by_their_paths() -> None:
    tools = [gen.Tool(name="f"), gen.Tool(name="f"), gen.Tool(), gen.Tool(name="g", parameters_json="1")]
    assert violations(text("x"), tools=tools) == [
        "chat.tools[1].name",
        "chat.tools[2].name",
        "chat.tools[3].parameters_json",
    ]


@pytest.mark.parametrize(
    ("json_text", "complaint"),
    [
        ("[]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{", "not valid JSON"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('{"\\udc00": 1}', "lone surrogate"),
        ('{"a": NaN}', "not finite"),
        ('{"a": -Infinity}', "not finite"),
        ('{"a": 1e999}', "not finite"),
        ('{"a": ' + "9" * 5000 + "}", "too long"),
        ('{"a": ' + "[" * 30_000 + "]" * 30_000 + "}", "nested too deeply"),
    ],
)
def test_json_that_is_no_clean_object_is_refused(json_text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_object(json_text)
    assert violations(text("x"), template_variables_json=json_text) == ["chat.template_variables_json"]


def test_template_variables_have_a_size() -> None:
    assert violations(text("x"), template_variables_json='{"a": "' + "x" * 65_536 + '"}') == [
        "chat.template_variables_json"
    ]


def test_images_are_bounded_in_number_and_in_bytes() -> None:
    assert violations(image(), image()) == []
    assert violations(image(), image(), image()) == ["chat.messages"]
    assert violations(image(b"bytes"), image(b"more bytes")) == [
        "chat.messages[0].parts[0].image.data",
        "chat.messages[1].parts[0].image.data",
    ]


def test_media_are_shown_by_users_and_tools() -> None:
    call = gen.ChatMessage(role=gen.ROLE_ASSISTANT, tool_calls=[CALL])
    assert violations(call, image(role=gen.ROLE_TOOL, tool_call_id="c1")) == []
    for role in (gen.ROLE_SYSTEM, gen.ROLE_ASSISTANT):
        assert violations(text("x"), image(role=role)) == ["chat.messages[1].parts[0].image"]
