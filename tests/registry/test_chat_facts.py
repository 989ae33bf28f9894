"""What a folder's files say about tools and reasoning, and what becomes of `auto`."""

from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.model import Capability, EngineSettings, ModelEntry
from inferd_server.registry.chat_facts import ChatFacts, read_chat_facts, with_chat_facts

HERMES = "{% if tools %}{{ tools }}{% endif %}<tool_call>{{ tool_call.name }}"


def facts(folder: Path, vocabulary: str = "", **tokenizer: Any) -> ChatFacts:
    (folder / "tokenizer.json").write_text(vocabulary)
    return read_chat_facts(folder, tokenizer)


def entry(**keys: str) -> ModelEntry:
    return ModelEntry("m", EngineSettings("m", Path("m")), **keys)  # type: ignore[arg-type]


def test_a_template_and_tokens_say_the_family(tmp_path: Path) -> None:
    vocabulary = '{"added_tokens": [{"content": "<think>"}, {"content": "</think>"}]}'
    found = facts(tmp_path, vocabulary, chat_template=HERMES)
    assert found == ChatFacts(True, True, "json_tools", "think")


def test_tokens_may_be_named_in_the_tokenizers_configuration_instead(tmp_path: Path) -> None:
    tokens = {str(i): {"content": text} for i, text in enumerate(("[THINK]", "[/THINK]"))}
    found = facts(tmp_path, chat_template="{{ tools }}[TOOL_CALLS]", added_tokens_decoder=tokens)
    assert (found.tool_call_parser, found.reasoning_parser) == ("mistral", "mistral")


def test_a_marker_inside_another_token_is_none(tmp_path: Path) -> None:
    assert facts(tmp_path, '["x<think>y", "</think>"]', chat_template="x").reasoning_parser == "none"


def test_several_templates_by_name_count_together(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": HERMES}]
    assert facts(tmp_path, chat_template=several).takes_tools


def test_a_parser_that_the_tokenizer_names_outranks_the_template(tmp_path: Path) -> None:
    assert facts(tmp_path, chat_template=HERMES, tool_parser_type="laguna").tool_call_parser == "laguna"
    assert facts(tmp_path, chat_template=HERMES, tool_parser_type="os").tool_call_parser == "json_tools"


@pytest.mark.parametrize(
    "tokenizer",
    [
        {},
        {"chat_template": ""},
        {"chat_template": 1},
        {"chat_template": [1, {}]},
        {"chat_template": "x", "added_tokens_decoder": 1, "tool_parser_type": ["x"]},
        {"chat_template": "x", "added_tokens_decoder": {"1": {"content": []}, "2": 3}},
    ],
)
def test_whatever_lies_there_nothing_is_raised(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    found = read_chat_facts(tmp_path, tokenizer)
    assert (found.takes_tools, found.tool_call_parser, found.reasoning_parser) == (False, "none", "none")


def test_auto_gives_way_to_what_was_found_and_a_name_does_not() -> None:
    found = ChatFacts(True, True, "glm47", "think")
    settled = with_chat_facts(entry(tool_call_parser="auto", reasoning_parser="auto"), found)
    assert (settled.tool_call_parser, settled.reasoning_parser) == ("glm47", "think")
    stated = with_chat_facts(entry(tool_call_parser="mistral", reasoning_parser="none"), found)
    assert (stated.tool_call_parser, stated.reasoning_parser) == ("mistral", "none")


@pytest.mark.parametrize(
    ("takes_tools", "parser", "can"),
    [(True, "glm47", True), (True, "none", False), (False, "glm47", False), (False, "none", False)],
)
def test_tools_take_a_template_and_a_parser(takes_tools: bool, parser: str, can: bool) -> None:
    settled = with_chat_facts(entry(tool_call_parser="auto"), ChatFacts(True, takes_tools, parser))
    assert (Capability.TOOLS in settled.capabilities) is can
    assert {Capability.GENERATE, Capability.CHAT} <= settled.capabilities
