"""How much work the checks of a request are, told without doing it: a heavy request is checked off the event loop."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from inferd.v1 import generation_pb2 as pb
from inferd.v1 import inference_service_pb2

from .convert import GenerationMessage

InputMessage: TypeAlias = "GenerationMessage | inference_service_pb2.TokenizeRequest"
Result = TypeVar("Result")

MAX_MESSAGES = 4096
MAX_TOOLS = 256
MAX_TOOL_CALLS = 256

LIGHT_JSON_CHARACTERS = 65_536
"""JSON that is parsed within about 15 ms."""
LIGHT_PIECES = 512
"""Messages, parts, tools and calls that are checked and converted within a few milliseconds."""
LIGHT_TOKEN_IDS = 65_536


async def run_weighed(message: InputMessage, work: Callable[[], Result]) -> Result:
    """Do `work` on `message`: here if that is quick, else on a thread. Its errors come through."""
    return await asyncio.to_thread(work) if is_heavy(message) else work()


def is_heavy(message: InputMessage) -> bool:
    """Whether checking and converting it would hold up the event loop."""
    kind = message.WhichOneof("input")
    if kind == "tokens" and not isinstance(message, inference_service_pb2.TokenizeRequest):
        return len(message.tokens.ids) > LIGHT_TOKEN_IDS
    if _has_many_pieces(message.chat) or json_characters(message) > LIGHT_JSON_CHARACTERS:
        return True
    return _shows_media(message.chat)


def _has_many_pieces(chat: pb.ChatInput) -> bool:
    pieces = len(chat.messages) + len(chat.tools)
    if pieces > LIGHT_PIECES:
        return True
    return pieces + sum(len(message.parts) + len(message.tool_calls) for message in chat.messages) > LIGHT_PIECES


def _shows_media(chat: pb.ChatInput) -> bool:
    """Their bytes are copied, and may be many."""
    return any(part.WhichOneof("content") not in {"text", None} for message in chat.messages for part in message.parts)


def json_characters(message: InputMessage) -> int:
    """Characters of all JSON texts that the checks might parse."""
    return sum(map(len, _json_texts(message)))


def _json_texts(message: InputMessage) -> Iterator[str]:
    chat = message.chat
    yield chat.template_variables_json
    for tool in chat.tools[:MAX_TOOLS]:
        yield tool.parameters_json
    for turn in chat.messages[:MAX_MESSAGES]:
        for call in turn.tool_calls[:MAX_TOOL_CALLS]:
            yield call.arguments_json
    if not isinstance(message, inference_service_pb2.TokenizeRequest):
        yield message.output.constraint.json_schema
