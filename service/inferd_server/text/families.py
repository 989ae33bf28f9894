"""How families of models mark reasoning and tool calls in their output, and which family a model's files speak of.

The names of the tool markers are those of mlx_lm's parsers (engine/tool_parsers.py opens them); a model is taken for
one of a family by the rules of mlx_lm, so that the two agree about it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """`start` and `end` of reasoning. `dropped` are other marks of structure, which belong to no text."""

    start: str
    end: str
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """`start` and `end` of a piece with tool calls; with an `end` of "" it goes on to the end of the output."""

    start: str
    end: str


REASONING = {
    "think": ReasoningMarkers("<think>", "</think>"),
    "longcat": ReasoningMarkers("<longcat_think>", "</longcat_think>"),
    "think_tokens": ReasoningMarkers("<|think:start|>", "<|think:end|>"),
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "gemma4": ReasoningMarkers("<|channel>thought", "<channel|>"),
    "harmony": ReasoningMarkers(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        ("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "<|end|>"),
    ),
    "kimi_k3": ReasoningMarkers(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
}

TOOL_CALLS = {
    "function_gemma": CallMarkers("<start_function_call>", "<end_function_call>"),
    "gemma4": CallMarkers("<|tool_call>", "<tool_call|>"),
    "glm47": CallMarkers("<tool_call>", "</tool_call>"),
    "json_tools": CallMarkers("<tool_call>", "</tool_call>"),
    "kimi_k2": CallMarkers("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "kimi_k3": CallMarkers("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    "laguna": CallMarkers("<tool_call>", "</tool_call>"),
    "longcat": CallMarkers("<longcat_tool_call>", "</longcat_tool_call>"),
    "minicpm5": CallMarkers("<function name=", "</function>"),
    "minimax_m2": CallMarkers("<minimax:tool_call>", "</minimax:tool_call>"),
    "mistral": CallMarkers("[TOOL_CALLS]", ""),
    "muse_spark": CallMarkers("<atem:function_calls>", "</atem:function_calls>"),
    "pythonic": CallMarkers("<|tool_call_start|>", "<|tool_call_end|>"),
    "qwen3_coder": CallMarkers("<tool_call>", "</tool_call>"),
}

TOOL_CALL_PARSERS = (AUTO, NONE, *TOOL_CALLS)
REASONING_PARSERS = (AUTO, NONE, *REASONING)

HasToken = Callable[[str], bool]
"""Whether a tokenizer has this text as one token."""

# mlx_lm's rules, in its order: all texts of a row stand in the template.
_TOOL_TEMPLATES = (
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("function_gemma", ("<start_function_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("glm47", ("<arg_key>",)),
    ("pythonic", ("<|tool_list_start|>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("qwen3_coder", ("<tool_call>\\n<function=",)),
    ("qwen3_coder", ("<tool_call>\n<function=",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("minicpm5", ('<function name="', '<param name="')),
    ("mistral", ("[TOOL_CALLS]",)),
    ("muse_spark", ("<atem:function_calls>",)),
    ("json_tools", ("<tool_call>", "tool_call.name")),
)
_TOOL_TOKENS = (
    ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")),
    ("pythonic", ("<|tool_call_start|>", "<|tool_call_end|>")),
)
_REASONING_TOKENS = (
    ("think", ("<think>", "</think>")),
    ("longcat", ("<longcat_think>", "</longcat_think>")),
    ("think_tokens", ("<|think:start|>", "<|think:end|>")),
    ("gemma4", ("<|channel>", "<channel|>")),
    ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")),
    ("mistral", ("[THINK]", "[/THINK]")),
    ("harmony", ("<|channel|>", "<|message|>", "<|call|>")),
)
MARKER_TOKENS = frozenset(
    [token for _, tokens in (*_TOOL_TOKENS, *_REASONING_TOKENS) for token in tokens]
    + [mark for calls in TOOL_CALLS.values() for mark in (calls.start, calls.end) if mark]
    + [mark for reasoning in REASONING.values() for mark in (reasoning.start, reasoning.end)]
)
"""Tokens that mark tool calls or reasoning, whether or not a template writes them."""

_TOOLS = re.compile(r"\btools\b")


def takes_tools(template: str) -> bool:
    """Whether a chat template does anything with tools."""
    return _TOOLS.search(template) is not None


def detect_tool_calls(template: str, has_token: HasToken) -> str:
    """The key of TOOL_CALLS that a model's chat template, else its tokens, speak of; "" for none."""
    for name, texts in _TOOL_TEMPLATES:
        if all(text in template for text in texts):
            return name
    return _first_with_tokens(_TOOL_TOKENS, has_token)


def detect_reasoning(template: str, has_token: HasToken) -> str:
    """The key of REASONING that a model's tokens, else its chat template, speak of; "" for none."""
    found = _first_with_tokens(_REASONING_TOKENS, has_token)
    if found:
        return found
    return next((name for name, markers in REASONING.items() if _writes(template, markers)), "")


def _first_with_tokens(rules: tuple[tuple[str, tuple[str, ...]], ...], has_token: HasToken) -> str:
    return next((name for name, tokens in rules if all(map(has_token, tokens))), "")


def _writes(template: str, markers: ReasoningMarkers) -> bool:
    return markers.start in template and markers.end in template
