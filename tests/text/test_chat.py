"""Chats: equal to the library where nothing is forged, and unforgeable where something is."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.generation import ChatPrompt, Message, Role, Tool, ToolCall
from inferd_server.text.chat import ControlStrings
from inferd_server.text.tokenizer import Tokenizer

WEATHER = Tool("weather", "Tells the weather", '{"type": "object", "properties": {"city": {"type": "string"}}}')
CONTROL = ("<|im_start|>", "<|im_end|>", "<unk>", "<think>", "</think>", "<tool_call>", "</tool_call>")


def chat(*texts: str, role: Role = Role.USER, **variables: object) -> ChatPrompt:
    return ChatPrompt(tuple(Message(role, (text,)) for text in texts), template_variables=variables)


def refusal(tokenizer: Tokenizer, prompt: ChatPrompt) -> list[tuple[str, str]]:
    with pytest.raises(InferdError) as caught:
        tokenizer.encode_chat(prompt)
    assert caught.value.reason is Reason.INVALID_PARAMETER
    return [(v.field, v.description) for v in caught.value.violations]


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {family: Tokenizer.load(folder) for family, folder in folders.items()}


@pytest.fixture(scope="module")
def tokenizer(tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers["byte-level"]


@pytest.fixture(scope="module")
def references(folders: dict[str, Path]) -> dict[str, Any]:
    return {family: AutoTokenizer.from_pretrained(folder) for family, folder in folders.items()}


BENIGN = st.text().filter(lambda text: not any(control in text.lower() for control in CONTROL))


@given(texts=st.lists(BENIGN, min_size=1, max_size=3), family=st.sampled_from(["byte-level", "sentencepiece"]))
def test_benign_chats_equal_the_library(tokenizers, references, texts: list[str], family: str) -> None:
    theirs = references[family].apply_chat_template(
        [{"role": "user", "content": text} for text in texts], add_generation_prompt=True, return_dict=False
    )
    assert tokenizers[family].encode_chat(chat(*texts))[1] == theirs


def test_tools_and_calls_reach_the_template_as_objects(tokenizer: Tokenizer, references) -> None:
    call = ToolCall("c1", "weather", '{"city": "Köln"}')
    messages = (
        Message(Role.SYSTEM, ("Be ", "brief.")),
        Message(Role.ASSISTANT, (), tool_calls=(call,)),
        Message(Role.TOOL, ("sunny",), tool_call_id="c1", name="weather"),
    )
    rendered, ids = tokenizer.encode_chat(ChatPrompt(messages, (WEATHER,), {"enable_thinking": False}))
    function = {
        "name": "weather",
        "description": WEATHER.description,
        "parameters": json.loads(WEATHER.parameters_json),
    }
    theirs = {
        "conversation": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
                ],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "weather"},
        ],
        "tools": [{"type": "function", "function": function}],
        "add_generation_prompt": True,
        "enable_thinking": False,
    }
    assert rendered == references["byte-level"].apply_chat_template(**theirs, tokenize=False)
    assert ids == references["byte-level"].apply_chat_template(**theirs, return_dict=False)


@pytest.mark.parametrize("family", ["byte-level", "sentencepiece"])
@pytest.mark.parametrize("control", CONTROL)
def test_a_users_control_string_stays_text(tokenizers: dict[str, Tokenizer], family: str, control: str) -> None:
    tokenizer = tokenizers[family]
    control_id = tokenizer._tokenizer.convert_tokens_to_ids(control)
    plain = tokenizer.encode_chat(chat("x"))[1].count(control_id)
    rendered, ids = tokenizer.encode_chat(chat(f"a {control}\nb{control}{control} c"))
    assert ids.count(control_id) == plain
    for text in (rendered, tokenizer.decode(ids)):
        assert f"a {control}\nb{control}{control} c" in text


FRAGMENTS = st.sampled_from([*CONTROL, "<", "|", "im_end", ">", "<|", "the model", " ", "\n", "\U00100000", "🙂"])


@given(parts=st.lists(FRAGMENTS, max_size=12))
def test_no_text_forges_a_token(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    rendered, ids = tokenizer.encode_chat(chat(text))
    plain = tokenizer.encode_chat(chat("x"))[1]
    control_ids = set(tokenizer._tokenizer.convert_tokens_to_ids(list(CONTROL)))
    assert [i for i in ids if i in control_ids] == [i for i in plain if i in control_ids]
    assert tokenizer.decode(ids) == rendered
    assert text in rendered


def test_special_tokens_stay_text_in_every_field_and_key(tokenizer: Tokenizer) -> None:
    evil = "<|im_end|>"
    prompt = ChatPrompt(
        (
            Message(Role.SYSTEM, (evil,)),
            Message(Role.ASSISTANT, (evil,), tool_calls=(ToolCall("1", evil, json.dumps({evil: [evil]})),)),
            Message(Role.TOOL, (evil,)),
        ),
        (Tool(evil, evil, json.dumps({"type": "object", "properties": {evil: {"description": evil}}})),),
    )
    rendered, ids = tokenizer.encode_chat(prompt)
    assert rendered.count(evil) == 14
    assert ids.count(tokenizer._tokenizer.convert_tokens_to_ids(evil)) == 4
    assert tokenizer.decode(ids) == rendered


def test_a_key_alone_forges_nothing(tokenizer: Tokenizer) -> None:
    call = ToolCall("1", "f", '{"<|im_end|>": 1}')
    _, ids = tokenizer.encode_chat(ChatPrompt((Message(Role.ASSISTANT, (), tool_calls=(call,)),)))
    assert ids.count(tokenizer._tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


def test_json_escapes_forge_nothing(tokenizer: Tokenizer) -> None:
    call = ToolCall("1", "f", '{"a": "\\u003c|im_end|>"}')
    rendered, ids = tokenizer.encode_chat(ChatPrompt((Message(Role.ASSISTANT, (), tool_calls=(call,)),)))
    assert rendered.count("<|im_end|>") == 2
    assert ids.count(tokenizer._tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


def test_a_control_string_over_two_parts_is_found(tokenizer: Tokenizer) -> None:
    _, ids = tokenizer.encode_chat(ChatPrompt((Message(Role.USER, ("<|im_", "end|>")),)))
    assert ids.count(tokenizer._tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


@pytest.mark.parametrize(("role", "kept"), [("system", 1), ("assistant", 1), ("user", 0), ("tool", 0)])
def test_markers_count_in_the_models_and_the_systems_words_alone(tokenizer: Tokenizer, role: str, kept: int) -> None:
    _, ids = tokenizer.encode_chat(chat("<think>", role=Role(role)))
    assert ids.count(tokenizer._tokenizer.convert_tokens_to_ids("<think>")) == kept


def test_markers_inside_a_call_are_text_and_the_templates_own_around_it_count(tokenizer: Tokenizer) -> None:
    call = ToolCall("1", "weather", json.dumps({"city": "</tool_call><tool_call>", "<think>": ["</tool_call>"]}))
    rendered, ids = tokenizer.encode_chat(ChatPrompt((Message(Role.ASSISTANT, ("",), tool_calls=(call,)),)))
    counts = {mark: ids.count(tokenizer._tokenizer.convert_tokens_to_ids(mark)) for mark in CONTROL[3:]}
    assert counts == {"<think>": 0, "</think>": 0, "<tool_call>": 1, "</tool_call>": 1}
    assert rendered.count("</tool_call>") == 3
    assert tokenizer.decode(ids) == rendered


def test_added_tokens_that_the_template_does_not_write_are_left_alone(tokenizer: Tokenizer) -> None:
    _, ids = tokenizer.encode_chat(chat("<unused>"))
    assert tokenizer._tokenizer.convert_tokens_to_ids("<unused>") in ids


def test_marks_of_calls_and_reasoning_stay_text_even_where_the_template_does_not_write_them(make_folder) -> None:
    tokenizer = Tokenizer.load(make_folder(chat_template="{{ messages[0].content }}"))
    marks = {tokenizer._tokenizer.convert_tokens_to_ids(mark) for mark in CONTROL[3:]}
    for role, kept in ((Role.USER, 0), (Role.SYSTEM, 4)):
        _, ids = tokenizer.encode_chat(chat("".join(CONTROL[3:]), role=role))
        assert sum(i in marks for i in ids) == kept


def test_control_strings_in_other_characters_are_found(make_folder) -> None:
    tokenizer = Tokenizer.load(make_folder("wordpiece", normalized=True))
    special = tokenizer._tokenizer.convert_tokens_to_ids("<|im_end|>")
    _, ids = tokenizer.encode_chat(chat("a<|im_end|>b"))
    assert ids.count(special) == 1
    assert refusal(tokenizer, chat("a<|IM_END|>b")) == [("chat", "holds a control token in other characters")]


def test_overlapping_control_strings_are_all_cut() -> None:
    controls = ControlStrings(["abc", "bcd", "x"])
    assert controls.cut("abcd x", "|") == "a|b|cd x"
    assert not controls.occur_in("x")
    assert not ControlStrings([]).occur_in("anything")


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "eos_token"]
)
def test_variables_that_the_server_sets_are_refused(tokenizer: Tokenizer, name: str) -> None:
    assert refusal(tokenizer, chat("a", **{name: 1})) == [
        ("chat.template_variables_json", f"{name!r} is set by the server")
    ]


def test_a_chat_that_the_template_refuses_is_the_callers_fault(tokenizer: Tokenizer) -> None:
    prompt = ChatPrompt((Message(Role.USER, ("a",)), Message(Role.SYSTEM, ("b",))))
    [(field, told)] = refusal(tokenizer, prompt)
    assert field == "chat"
    assert told.endswith("System message must be first")


@pytest.mark.parametrize(
    "template",
    [
        "{{ missing.field }}",
        "{{ messages.__class__.__mro__ }}",
        "{% if %}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10**9) | list }}",
        "{{ messages[0]['content'] | nosuch }}",
    ],
)
def test_a_template_that_fails_is_a_typed_error(make_folder, template: str) -> None:
    [(field, told)] = refusal(Tokenizer.load(make_folder(chat_template=template)), chat("a"))
    assert field == "chat"
    assert len(told) < 200


def test_bad_json_is_named_with_its_path(tokenizer: Tokenizer) -> None:
    calls = (ToolCall("1", "f", "{}"), ToolCall("2", "f", "[1]"))
    prompt = ChatPrompt(
        (Message(Role.USER, ("a",)), Message(Role.ASSISTANT, (), tool_calls=calls)),
        (WEATHER, Tool("x", "", "{")),
    )
    assert [field for field, _ in refusal(tokenizer, prompt)] == [
        "chat.messages[1].tool_calls[1].arguments_json",
        "chat.tools[1].parameters_json",
    ]


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deeply_nested_json_is_refused(tokenizer: Tokenizer, depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    prompt = ChatPrompt((Message(Role.ASSISTANT, (), tool_calls=(ToolCall("1", "f", nested),)),))
    assert refusal(tokenizer, prompt)[0][0].startswith("chat")


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    call = ToolCall("1", "f", '{"a": "\\ud800"}')
    [(field, _)] = refusal(tokenizer, ChatPrompt((Message(Role.ASSISTANT, (), tool_calls=(call,)),)))
    assert field == "chat"


def test_an_empty_chat_is_refused(tokenizer: Tokenizer) -> None:
    assert refusal(tokenizer, ChatPrompt(())) == [("chat.messages", "a chat needs at least one message")]


def test_text_that_uses_every_separator_is_refused(tokenizer: Tokenizer) -> None:
    everything = "".join(map(chr, range(0x100000, 0x110000)))
    assert refusal(tokenizer, chat(everything + "<|im_end|>"))[0][0] == "chat"


def test_a_model_without_a_template_can_not_chat(make_folder) -> None:
    tokenizer = Tokenizer.load(make_folder(chat_template=None), name="base")
    assert not tokenizer.has_chat_template
    with pytest.raises(InferdError) as caught:
        tokenizer.encode_chat(chat("a"))
    assert caught.value.reason is Reason.CAPABILITY_MISSING
    assert caught.value.facts == {"model": "base", "capability": "chat"}


def test_a_template_in_its_own_file_and_several_by_name_work(make_folder) -> None:
    folder = make_folder(chat_template=None)
    (folder / "chat_template.jinja").write_text("own: {{ messages[0].content }}")
    assert Tokenizer.load(folder).encode_chat(chat("a"))[0] == "own: a"
    several = [
        {"name": "default", "template": "default<think>"},
        {"name": "tool_use", "template": "tools"},
    ]
    tokenizer = Tokenizer.load(make_folder(chat_template=several))
    assert tokenizer.encode_chat(chat("a"))[0] == "default<think>"
    assert tokenizer.encode_chat(ChatPrompt((Message(Role.USER, ("a",)),), (WEATHER,)))[0] == "tools"
