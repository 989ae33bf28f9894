"""What a request needs beyond text, and that its model can't do: typed, never a wrong success."""

from collections.abc import Iterator

from inferd.v1 import generation_pb2, inference_service_pb2
from inferd_server.core.errors import capability_missing
from inferd_server.core.model import Capability, ModelEntry

from .convert import GenerationMessage

MEDIA = {"image": "vision", "audio": "audio", "video": "video"}


def check_capabilities(message: GenerationMessage | inference_service_pb2.TokenizeRequest, entry: ModelEntry) -> None:
    """Refuse the first thing that the model can't do: media of a kind, tools.

    Raises:
        InferdError: CAPABILITY_MISSING.
    """
    if not entry.makes_text:
        _check_text_alone(message, entry)
    for capability, field in _needs(message):
        if capability not in entry.capabilities:
            text = f"model {entry.name!r} can't serve {field}: capability {capability!r} is missing"
            raise capability_missing(entry.name, capability, text)


def _check_text_alone(message: GenerationMessage | inference_service_pb2.TokenizeRequest, entry: ModelEntry) -> None:
    """A model that makes no text can only count the tokens of one."""
    is_chat = message.WhichOneof("input") == "chat"
    capability = Capability.CHAT if is_chat else Capability.GENERATE
    if is_chat or not isinstance(message, inference_service_pb2.TokenizeRequest):
        text = f"model {entry.name!r} makes no text: capability '{capability}' is missing"
        raise capability_missing(entry.name, capability, text)


def _needs(message: GenerationMessage | inference_service_pb2.TokenizeRequest) -> Iterator[tuple[str, str]]:
    """(capability, field that needs it)."""
    if message.WhichOneof("input") == "chat":
        yield from _chat_needs(message.chat)


def _chat_needs(chat: generation_pb2.ChatInput) -> Iterator[tuple[str, str]]:
    for i, message in enumerate(chat.messages):
        for j, part in enumerate(message.parts):
            kind = part.WhichOneof("content")
            if kind in MEDIA:
                yield MEDIA[kind], f"chat.messages[{i}].parts[{j}].{kind}"
        if message.tool_calls:
            yield "tools", f"chat.messages[{i}].tool_calls"
    if chat.tools:
        yield "tools", "chat.tools"
