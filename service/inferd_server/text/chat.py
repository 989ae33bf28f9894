"""Chats for a model's own template: the template's variables, and the guard against forged control tokens.

A tokenizer turns the text `<|im_end|>` into one control token wherever it stands. In a caller's text it must stay text.
The guard cuts each such string behind its first character with a separator that occurs nowhere else, lets the template
render, and the text is encoded in the pieces between separators: no piece holds a control string of the caller's, while
the template's own are whole. A chat without such strings is one piece, encoded as ever.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from os.path import commonprefix
from typing import Any

from inferd_server.core.errors import FieldViolation, invalid_parameter
from inferd_server.core.generation import ChatPrompt, Message, Role, Tool

Variables = dict[str, Any]
"""What a template sees: JSON-like values by name."""

# A plane of private characters that no standard text uses.
_SEPARATORS = tuple(map(chr, range(0x100000, 0x100100)))


def chat_variables(chat: ChatPrompt, reserved: frozenset[str], *, as_parts: bool = False) -> Variables:
    """The chat as template variables: `messages`, `tools` (if any) and the caller's own.

    Args:
        as_parts: a message's content is a list of parts even where it is text alone.

    Raises:
        InferdError: INVALID_PARAMETER with every bad JSON field and every reserved name.
    """
    bad: list[FieldViolation] = []
    messages = [_message(m, f"chat.messages[{i}]", bad, as_parts=as_parts) for i, m in enumerate(chat.messages)]
    tools = [_tool(t, f"chat.tools[{i}]", bad) for i, t in enumerate(chat.tools)]
    if not messages:
        bad.append(FieldViolation("chat.messages", "a chat needs at least one message"))
    for name in sorted(reserved & chat.template_variables.keys()):
        bad.append(FieldViolation("chat.template_variables_json", f"{name!r} is set by the server"))
    if bad:
        raise invalid_parameter(bad)
    offered = {"tools": tools} if tools else {}
    return {**chat.template_variables, **offered, "messages": messages}


def _message(message: Message, path: str, bad: list[FieldViolation], *, as_parts: bool) -> Variables:
    turn: Variables = {"role": message.role.value, "content": _content(message, as_parts)}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _object(call.arguments_json, f"{path}.tool_calls[{i}].arguments_json", bad),
                },
            }
            for i, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    return turn


def _content(message: Message, as_parts: bool) -> str | list[Variables]:
    """One string where there is only text, unless the template wants parts."""
    if not message.blobs and not as_parts:
        return "".join(message.text_parts)
    return [{"type": "text", "text": p} if isinstance(p, str) else {"type": p.kind.value} for p in message.parts]


def _tool(tool: Tool, path: str, bad: list[FieldViolation]) -> Variables:
    parameters = _object(tool.parameters_json, f"{path}.parameters_json", bad)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _object(text: str, path: str, bad: list[FieldViolation]) -> Variables:
    """A JSON object; empty text is the empty object."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    bad.append(FieldViolation(path, "must be a JSON object"))
    return {}


class ControlStrings:
    """Strings that a tokenizer turns into control tokens."""

    def __init__(self, strings: Iterable[str]) -> None:
        """Strings of one character can't be cut and are left out."""
        literals = _beginning_with_any([s for s in strings if len(s) > 1])
        self._any = re.compile(literals)
        # One character is consumed per match, so that overlapping strings are all cut.
        self._head = re.compile(f"(?={literals}).", re.DOTALL)

    def occur_in(self, text: str) -> bool:
        """Whether one of them stands in `text`."""
        return self._any.search(text) is not None

    def cut(self, text: str, separator: str) -> str:
        """`text` with `separator` behind the first character of each of them."""
        return self._head.sub(rf"\g<0>{separator}", text)


def _beginning_with_any(strings: Iterable[str]) -> str:
    """A pattern for the place where any of the strings begins (the shortest will do). Shared beginnings are tried once,
    so that hundreds of `<|reserved_…|>` cost no more than one, whatever the text."""
    alternatives = []
    for _, group in groupby(sorted(set(strings)), key=lambda string: string[0]):
        members = list(group)
        shared = commonprefix(members)  # noqa: RUF071 - of characters, as it does
        rests = [] if shared in members else [member[len(shared) :] for member in members]
        alternatives.append(re.escape(shared) + (_beginning_with_any(rests) if rests else ""))
    return f"(?:{'|'.join(alternatives)})" if alternatives else "(?!)"


class Guard:
    """Keeps control strings in a caller's text from becoming control tokens.

    `special` tokens (ends of turns and the like) are text in every field. The other `markers`, such as <think> or
    <tool_call> and whatever else the template writes, are text in user and tool messages and in tool calls, whose
    markers are the template's own; in system and assistant messages they are what the model's maker meant:
    instructions about them, and the model's own words.
    """

    def __init__(self, special: Iterable[str], markers: Iterable[str], normalize: Callable[[str], str] | None) -> None:
        """`normalize` is the tokenizer's, if it looks for control strings in normalized text, else None."""
        forms = normalize or str
        special = {form for token in special for form in (token, forms(token))}
        markers = {form for token in markers for form in (token, forms(token))}
        self._special = ControlStrings(special)
        self._every = ControlStrings(special | markers)
        self._normalize = normalize

    def separator_for(self, variables: Variables) -> str:
        """The separator that `protected` is to use: "" where no text has a control string.

        Raises:
            InferdError: INVALID_PARAMETER for text that no separator can protect.
        """
        texts = list(_texts(variables))
        if self._normalize and any(self._is_disguised(text, self._normalize) for text in texts):
            raise invalid_parameter([FieldViolation("chat", "holds a control token in other characters")])
        if not any(map(self._every.occur_in, texts)):
            return ""
        used = set().union(*texts)
        free = next((s for s in _SEPARATORS if s not in used), "")
        if not free:
            raise invalid_parameter([FieldViolation("chat", "uses up the private characters of plane 16")])
        return free

    def _is_disguised(self, text: str, normalize: Callable[[str], str]) -> bool:
        return not self._every.occur_in(text) and self._every.occur_in(normalize(text))

    def protected(self, variables: Variables, separator: str) -> Variables:
        """The variables with every control string of the caller's cut by `separator`."""
        others = {name: value for name, value in variables.items() if name != "messages"}
        protected: Variables = _mapped(others, partial(self._special.cut, separator=separator))
        protected["messages"] = [self._protected_message(message, separator) for message in variables["messages"]]
        return protected

    def _protected_message(self, message: Variables, separator: str) -> Variables:
        from_outside = message["role"] in {Role.USER, Role.TOOL}
        return {
            field: _mapped(
                value,
                partial(
                    (self._every if from_outside or field == "tool_calls" else self._special).cut, separator=separator
                ),
            )
            for field, value in message.items()
        }


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON-like value with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return value
