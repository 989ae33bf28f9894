"""Tool calls as a parser found them in the output, checked: whatever is no call of an offered tool is none at all."""

import json
import re
import secrets
import string
from collections.abc import Callable, Sequence
from typing import Any

from inferd_server.core.generation import ChatPrompt, Tool, ToolCall

Parse = Callable[[str, list[dict[str, Any]]], object]
"""A parser of mlx_lm's: (text between the markers, tools as templates see them) -> one call or a list of them. Raises
anything for text that it can't read, and may find calls in text that holds none."""

MAX_CALLS = 128
"""More calls in one piece are none."""

_PLAUSIBLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ID_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 9  # what Mistral's templates insist on; 10**16 possibilities, and those of the chat are left out


class CallReader:
    """Reads the tool calls of one output."""

    def __init__(self, parse: Parse, chat: ChatPrompt) -> None:
        """`chat` names the tools on offer, whose JSON was checked, and the ids that are taken."""
        self._parse = parse
        self._names = {tool.name for tool in chat.tools}
        self._tools = [_parser_tool(tool) for tool in chat.tools]
        self._ids = {call.id for message in chat.messages for call in message.tool_calls}

    def read(self, text: str) -> Sequence[ToolCall]:
        """The calls in a piece of output; () if it is anything else than calls of offered tools. Never raises."""
        try:
            parsed = self._parse(text, self._tools)
            found = parsed if isinstance(parsed, list) else [parsed]
            calls = [self._call(each) for each in found[: MAX_CALLS + 1]]
        except Exception:  # noqa: BLE001 - what a model says makes the parsers raise all kinds
            return ()
        return calls if len(calls) <= MAX_CALLS else ()

    def _call(self, found: Any) -> ToolCall:
        name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
        if name not in self._names:
            raise ValueError("no tool of that name is on offer")
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not isinstance(arguments, dict):
            raise TypeError("the arguments are no object")
        return ToolCall(self._new_id(found.get("id")), name, _json_text(arguments))

    def _new_id(self, stated: object) -> str:
        """The model's own id if it gave a new one (some templates expect it back), else a fresh one."""
        new = stated if isinstance(stated, str) and _PLAUSIBLE_ID.fullmatch(stated) else _random_id()
        while new in self._ids:
            new = _random_id()
        self._ids.add(new)
        return new


def _random_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))


def _json_text(arguments: dict[Any, Any]) -> str:
    """JSON that is valid UTF-8. Raises ValueError or TypeError for what JSON has no form of."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(arguments, allow_nan=False)
    return text


def _parser_tool(tool: Tool) -> dict[str, Any]:
    """A tool as templates see it, with the properties alone of its schema, and of them those that the parsers can read
    (they look up a property's type, and fail at a property `true`)."""
    schema = json.loads(tool.parameters_json or "{}")
    properties = schema.get("properties")
    known = properties.items() if isinstance(properties, dict) else ()
    parameters = {"type": "object", "properties": {name: each for name, each in known if isinstance(each, dict)}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
