"""What a model folder's files say about chats: the template, whether it takes tools, and the model's family."""

import json
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferd_server.core.model import Capability, ModelEntry
from inferd_server.text.families import AUTO, NONE, TOOL_CALLS, detect_reasoning, detect_tool_calls, takes_tools

MAX_HEAD_NBYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChatFacts:
    """What the files say.

    Attributes:
        takes_tools: whether the chat template does anything with tools.
        shows_images: whether it does anything with images.
        tool_call_parser, reasoning_parser: what `auto` stands for with this model.
    """

    has_template: bool = False
    takes_tools: bool = False
    tool_call_parser: str = NONE
    reasoning_parser: str = NONE
    shows_images: bool = False


def with_chat_facts(stated: ModelEntry, facts: ChatFacts) -> ModelEntry:
    """The entry with its capabilities, and with parsers in the place of `auto`."""
    calls = facts.tool_call_parser if stated.tool_call_parser == AUTO else stated.tool_call_parser
    reasoning = facts.reasoning_parser if stated.reasoning_parser == AUTO else stated.reasoning_parser
    capabilities = {Capability.GENERATE}
    if facts.has_template:
        capabilities.add(Capability.CHAT)
    if facts.takes_tools and calls != NONE:
        capabilities.add(Capability.TOOLS)
    return replace(stated, capabilities=frozenset(capabilities), tool_call_parser=calls, reasoning_parser=reasoning)


def read_chat_facts(folder: Path, tokenizer: dict[str, Any]) -> ChatFacts:
    """Look at a folder; `tokenizer` is its tokenizer_config.json. Blocking (small reads); never raises."""
    template = _chat_template(folder, tokenizer)
    if not template:
        return ChatFacts()
    vocabulary = _read_head(folder / "tokenizer.json")
    added = [token.get("content") for token in _mappings(tokenizer.get("added_tokens_decoder"))]

    def has_token(token: str) -> bool:
        # In JSON every token stands in quotes. To read a large vocabulary as JSON takes a second.
        return token in added or json.dumps(token).encode() in vocabulary

    stated = tokenizer.get("tool_parser_type")  # mlx_lm's own key
    known = stated if isinstance(stated, str) and stated in TOOL_CALLS else ""
    return ChatFacts(
        has_template=True,
        takes_tools=takes_tools(template),
        shows_images="image" in template,
        tool_call_parser=known or detect_tool_calls(template, has_token) or NONE,
        reasoning_parser=detect_reasoning(template, has_token) or NONE,
    )


def _chat_template(folder: Path, tokenizer: dict[str, Any]) -> str:
    """The template's text (of several by name, all of them); "" if there is none."""
    own = _read_head(folder / "chat_template.jinja") or _read_head(folder / "chat_template.json")
    if own:
        return own.decode(errors="replace")
    stated = tokenizer.get("chat_template")
    if isinstance(stated, str):
        return stated
    return "\n".join(str(each.get("template")) for each in _mappings(stated))


def _mappings(value: object) -> list[dict[str, Any]]:
    """The mappings in a list or in a mapping's values."""
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in each if isinstance(item, dict)]


def _read_head(file: Path) -> bytes:
    """A file's first bytes; b"" where there is no such file. The tokens that were added to a vocabulary come first."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return b""
        with file.open("rb") as stream:
            return stream.read(MAX_HEAD_NBYTES)
    except OSError:
        return b""
