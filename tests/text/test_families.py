"""Models are told apart by their templates and tokens, as mlx_lm tells them."""

import pytest

from inferd_server.text.families import REASONING, TOOL_CALLS, detect_reasoning, detect_tool_calls, takes_tools

TEMPLATES = [
    ("minimax_m2", "<minimax:tool_call>"),
    ("gemma4", "<|tool_call>call:f{}<tool_call|>"),
    ("function_gemma", "<start_function_call>"),
    ("longcat", "<longcat_tool_call>"),
    ("glm47", "<tool_call>{{ tool_call.name }}<arg_key>"),
    ("pythonic", "<|tool_list_start|>"),
    ("pythonic", "<|tool_call_start|>"),
    ("qwen3_coder", "'<tool_call>\\n<function=' + tool_call.name"),
    ("qwen3_coder", "<tool_call>\n<function=tool_call.name"),
    ("kimi_k2", "<|tool_calls_section_begin|>"),
    ("minicpm5", '<function name="f"><param name="a">'),
    ("mistral", "[TOOL_CALLS]"),
    ("muse_spark", "<atem:function_calls>"),
    ("json_tools", '<tool_call>\n{"name": "\' + tool_call.name'),
    ("", "{{ messages }}"),
    ("", "<tool_call>"),
]
TOKENS = [
    ("", "", []),
    ("", "", ["<think>"]),
    ("", "think", ["<think>", "</think>"]),
    ("", "longcat", ["<longcat_think>", "</longcat_think>"]),
    ("", "mistral", ["[THINK]", "[/THINK]"]),
    ("", "gemma4", ["<|channel>", "<channel|>"]),
    ("", "harmony", ["<|channel|>", "<|message|>", "<|call|>", "<|end|>"]),
    ("kimi_k3", "kimi_k3", ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"]),
    ("pythonic", "", ["<|tool_call_start|>", "<|tool_call_end|>"]),
]


def has_no_token(token: str) -> bool:
    return False


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_a_template_speaks_of_a_parser(name: str, template: str) -> None:
    assert detect_tool_calls(template, has_no_token) == name
    assert name in {"", *TOOL_CALLS}


@pytest.mark.parametrize(("calls", "reasoning", "tokens"), TOKENS)
def test_tokens_speak_of_a_family(calls: str, reasoning: str, tokens: list[str]) -> None:
    assert detect_tool_calls("{{ messages }}", tokens.__contains__) == calls
    assert detect_reasoning("{{ messages }}", tokens.__contains__) == reasoning
    assert reasoning in {"", *REASONING}


def test_a_template_that_writes_both_marks_of_reasoning_is_enough() -> None:
    assert detect_reasoning("{{ content.split('</think>') }}<think>", has_no_token) == "think"
    assert detect_reasoning("{{ content.split('</think>') }}", has_no_token) == ""


@pytest.mark.parametrize(
    ("template", "takes"),
    [("{% if tools %}", True), ("{{tools|tojson}}", True), ("{{ messages }} toolset tools_x", False), ("", False)],
)
def test_a_template_takes_tools_if_it_names_them(template: str, takes: bool) -> None:
    assert takes_tools(template) is takes
