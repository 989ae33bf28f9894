"""What a parser found is a call of a tool on offer, or no call."""

import json
import re
from typing import Any

import pytest

from inferd_server.core.generation import ChatPrompt, Message, Role, Tool, ToolCall
from inferd_server.text.calls import MAX_CALLS, CallReader

CHAT = ChatPrompt(
    (
        Message(Role.USER, ("hi",)),
        Message(Role.ASSISTANT, (), (ToolCall("functions.f:0", "f", "{}"),)),
        Message(Role.TOOL, ("1",), tool_call_id="functions.f:0"),
    ),
    (Tool("f", "does", '{"type": "object", "properties": {"a": {"type": "integer"}}}'), Tool("g", "", "")),
)


def reader(found: object = None, chat: ChatPrompt = CHAT) -> CallReader:
    """One whose parser finds this, whatever the text."""

    def parse(text: str, tools: list[dict[str, Any]]) -> object:
        if isinstance(found, Exception):
            raise found
        return found

    return CallReader(parse, chat)


def call(**changes: Any) -> dict[str, Any]:
    return {"name": "f", "arguments": {"a": 1}, **changes}


def test_one_call_and_several_are_read() -> None:
    [found] = reader(call()).read("x")
    assert (found.name, found.arguments_json) == ("f", '{"a": 1}')
    assert [each.name for each in reader([call(), call(name="g")]).read("x")] == ["f", "g"]


@pytest.mark.parametrize(
    "found",
    [
        ValueError("no"),
        AttributeError("no"),
        TimeoutError(),
        RecursionError(),
        MemoryError(),
        None,
        [],
        1,
        "f",
        {},
        [call(), {}],
        call(name="h"),
        call(name=None),
        call(name=["f"]),
        call(arguments=[]),
        call(arguments=None),
        call(arguments="1"),
        call(arguments="{"),
        call(arguments={"a": float("nan")}),
        call(arguments={"a": float("inf")}),
        call(arguments={"a": b"x"}),
        call(arguments={"a": {1, 2}}),
        call(arguments={(1, 2): 1}),
        [call()] * (MAX_CALLS + 1),
    ],
)
def test_all_else_is_no_call(found: object) -> None:
    assert list(reader(found).read("x")) == []


def test_arguments_are_json_text_of_an_object() -> None:
    for arguments in ({"a": 1, "b": [None, True, "é🙂"]}, {}, '{"a": "x"}'):
        [found] = reader(call(arguments=arguments)).read("x")
        expected = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert json.loads(found.arguments_json) == expected
        found.arguments_json.encode()
    [found] = reader(call(arguments={"a": "é"})).read("x")
    assert found.arguments_json == '{"a": "é"}', "people can read it"
    assert [each.arguments_json for each in reader({"name": "f"}).read("x")] == ["{}"]
    assert [each.arguments_json for each in reader({"name": "f", "parameters": {"a": 1}}).read("x")] == ['{"a": 1}']


def test_half_a_surrogate_pair_can_be_sent() -> None:
    [found] = reader(call(arguments={"a": "\ud800"})).read("x")
    assert found.arguments_json.encode() == b'{"a": "\\ud800"}'


def test_ids_are_new_and_such_as_every_template_takes() -> None:
    one = reader([call()] * MAX_CALLS)
    ids = [found.id for _ in range(10) for found in one.read("x")]
    assert len(set(ids)) == len(ids) == 10 * MAX_CALLS
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", each) for each in ids)


@pytest.mark.parametrize("stated", ["functions.f:0", "", 7, None, "a b", "\ud800", "x" * 200])
def test_an_id_that_is_taken_or_odd_is_replaced(stated: object) -> None:
    [found] = reader(call(id=stated)).read("x")
    assert re.fullmatch(r"[A-Za-z0-9]{9}", found.id)


def test_a_new_id_of_the_models_own_is_kept_once() -> None:
    one = reader([call(id="functions.f:1"), call(id="functions.f:1")])
    first, second = one.read("x")
    assert first.id == "functions.f:1" != second.id


def test_parsers_see_the_tools_with_properties_that_they_can_read() -> None:
    seen: list[Any] = []
    schema = '{"properties": {"a": {"type": "string"}, "b": true}, "$defs": {"x": {}}}'
    tools = (Tool("f", "d", schema), Tool("g", "", '{"properties": [1]}'), Tool("h", "", ""))
    CallReader(lambda text, offered: seen.extend([text, offered]), ChatPrompt((), tools)).read("body")
    text, offered = seen
    assert text == "body"
    assert offered[0] == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
    assert [each["function"]["parameters"]["properties"] for each in offered[1:]] == [{}, {}]
