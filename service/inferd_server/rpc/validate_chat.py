"""The checks of a chat: known roles, content in every turn, media within their limits, tool results that answer a call,
JSON that is JSON."""

import re
from collections.abc import Sequence

from inferd.v1 import generation_pb2 as pb
from inferd_server.core.media import MediaKind, MediaLimits

from .enums import ROLES
from .violations import Violations
from .weight import MAX_MESSAGES, MAX_TOOL_CALLS, MAX_TOOLS

MAX_PARTS = 256
MAX_PARTS_IN_ALL = 16_384
MAX_NAME_CHARACTERS = 256
MAX_MIME_TYPE_CHARACTERS = 128
SHOWING_ROLES = frozenset({pb.ROLE_USER, pb.ROLE_TOOL})
"""Who may show media."""
MAX_TOOL_CALLS_IN_ALL = 16_384
MAX_JSON_CHARACTERS = 262_144
MAX_TEMPLATE_VARIABLES_CHARACTERS = 65_536
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_chat(chat: pb.ChatInput, limits: MediaLimits, violations: Violations) -> dict[str, object]:
    """Everything about `chat.*`; returns the template's variables."""
    messages = chat.messages
    claim = 1 <= len(messages) <= MAX_MESSAGES
    violations.require(claim, "chat.messages", f"between 1 and {MAX_MESSAGES} messages are needed")
    if not (claim and _check_totals(messages, limits, violations)):
        return {}
    if not any(map(_says_something, messages)):
        violations.add("chat.messages", "must not be empty: no message has any content")
    call_ids: set[str] = set()
    for i, message in enumerate(messages):
        _check_message(message, f"chat.messages[{i}]", call_ids, limits, violations)
    _check_tools(chat, violations)
    return violations.check_json_object(
        chat.template_variables_json, "chat.template_variables_json", MAX_TEMPLATE_VARIABLES_CHARACTERS
    )


def _check_totals(messages: Sequence[pb.ChatMessage], limits: MediaLimits, violations: Violations) -> bool:
    """Few enough parts, calls and images in all to look at each."""
    claims = (
        (sum(len(message.parts) for message in messages) <= MAX_PARTS_IN_ALL, MAX_PARTS_IN_ALL, "parts"),
        (sum(len(message.tool_calls) for message in messages) <= MAX_TOOL_CALLS_IN_ALL, MAX_TOOL_CALLS_IN_ALL, "calls"),
        (_count_images(messages) <= limits.max_images, limits.max_images, "images"),
    )
    return all(
        violations.require(claim, "chat.messages", f"at most {most} {what} in all are allowed")
        for claim, most, what in claims
    )


def _count_images(messages: Sequence[pb.ChatMessage]) -> int:
    return sum(part.HasField("image") for message in messages for part in message.parts)


def _says_something(message: pb.ChatMessage) -> bool:
    return bool(message.tool_calls) or any(part.WhichOneof("content") != "text" or part.text for part in message.parts)


def _check_message(
    message: pb.ChatMessage, field: str, call_ids: set[str], limits: MediaLimits, violations: Violations
) -> None:
    """One turn; `call_ids` are those of earlier turns, and grow by this one's."""
    if message.role == pb.ROLE_UNSPECIFIED:
        violations.add(f"{field}.role", "must be set")
    elif message.role not in ROLES:
        violations.add(f"{field}.role", f"{message.role} is no known role")
    violations.check_length(message.name, f"{field}.name", MAX_NAME_CHARACTERS)
    _check_parts(message, f"{field}.parts", limits, violations)
    _check_tool_result(message, f"{field}.tool_call_id", call_ids, violations)
    _check_tool_calls(message, f"{field}.tool_calls", violations)
    call_ids.update(call.id for call in message.tool_calls[:MAX_TOOL_CALLS])


def _check_parts(message: pb.ChatMessage, field: str, limits: MediaLimits, violations: Violations) -> None:
    claim = bool(message.parts) or bool(message.tool_calls)
    violations.require(claim, field, "must not be empty")
    violations.require(len(message.parts) <= MAX_PARTS, field, f"at most {MAX_PARTS} parts are allowed")
    for i, part in enumerate(message.parts[:MAX_PARTS]):
        kind = part.WhichOneof("content")
        if kind is None:
            violations.add(f"{field}[{i}]", "one of text, image, audio and video must be set")
        elif kind != "text":
            claim = message.role in SHOWING_ROLES
            violations.require(claim, f"{field}[{i}].{kind}", "belongs to the roles user and tool only")
            most = limits.max_image_nbytes if kind == MediaKind.IMAGE else None
            _check_blob(getattr(part, kind), f"{field}[{i}].{kind}", most, violations)


def _check_blob(blob: pb.Blob, field: str, most: int | None, violations: Violations) -> None:
    """Media of 1 to `most` bytes."""
    violations.check_length(blob.mime_type, f"{field}.mime_type", MAX_MIME_TYPE_CHARACTERS, least=1)
    nbytes = len(blob.data)  # asked once: each time, the bytes are copied
    violations.require(nbytes > 0, f"{field}.data", "must not be empty")
    if most is not None:
        violations.require(nbytes <= most, f"{field}.data", f"has {nbytes} bytes; at most {most} are allowed")


def _check_tool_result(message: pb.ChatMessage, field: str, call_ids: set[str], violations: Violations) -> None:
    if message.role != pb.ROLE_TOOL:
        violations.require(not message.tool_call_id, field, "belongs to the role tool only")
    elif not message.tool_call_id:
        violations.add(field, "must name the call that this message answers")
    else:
        claim = message.tool_call_id in call_ids
        violations.require(claim, field, "names no tool call of an earlier message")


def _check_tool_calls(message: pb.ChatMessage, field: str, violations: Violations) -> None:
    calls = message.tool_calls
    if not calls:
        return
    violations.require(message.role == pb.ROLE_ASSISTANT, field, "belongs to the role assistant only")
    violations.require(len(calls) <= MAX_TOOL_CALLS, field, f"at most {MAX_TOOL_CALLS} calls are allowed")
    for i, call in enumerate(calls[:MAX_TOOL_CALLS]):
        violations.check_length(call.id, f"{field}[{i}].id", MAX_NAME_CHARACTERS, least=1)
        _check_tool_name(call.name, f"{field}[{i}].name", violations)
        violations.check_json_object(call.arguments_json, f"{field}[{i}].arguments_json", MAX_JSON_CHARACTERS)


def _check_tools(chat: pb.ChatInput, violations: Violations) -> None:
    violations.require(len(chat.tools) <= MAX_TOOLS, "chat.tools", f"at most {MAX_TOOLS} tools are allowed")
    names: set[str] = set()
    for i, tool in enumerate(chat.tools[:MAX_TOOLS]):
        _check_tool_name(tool.name, f"chat.tools[{i}].name", violations)
        violations.require(tool.name not in names, f"chat.tools[{i}].name", "is the name of an earlier tool")
        names.add(tool.name)
        violations.check_length(tool.description, f"chat.tools[{i}].description", MAX_JSON_CHARACTERS)
        violations.check_json_object(tool.parameters_json, f"chat.tools[{i}].parameters_json", MAX_JSON_CHARACTERS)


def _check_tool_name(name: str, field: str, violations: Violations) -> None:
    violations.require(TOOL_NAME.fullmatch(name) is not None, field, f"must match {TOOL_NAME.pattern}")
