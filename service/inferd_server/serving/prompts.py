"""From a prompt to token ids, with its pictures beside them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferd_server.core.errors import InferdError, Reason, prompt_over_limit
from inferd_server.core.generation import ChatPrompt, Prompt, RawPrompt, TokenPrompt
from inferd_server.core.media import PictureFeatures
from inferd_server.core.model import ModelEntry
from inferd_server.text.tokenizer import Tokenizer

from .limits import prompt_field
from .pictures import Pictures

INLINE_CHARACTERS = 2000
"""Prompts up to so many characters are tokenized on the loop (about a millisecond); longer ones in a thread."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as an engine takes it, and as its template rendered it."""

    rendered: str
    ids: list[int]
    pictures: PictureFeatures | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a prompt may amount to.

    Attributes:
        context_length: tokens; 0 if unknown.
        limit_tokens: of its caller; None for none.
        held_nbytes: of the pictures that each request in flight holds.
    """

    context_length: int
    limit_tokens: int | None = None
    held_nbytes: Iterable[int] = ()


async def encode(
    prompt: Prompt, entry: ModelEntry, tokenizer: Tokenizer, pictures: Pictures, bounds: Bounds
) -> EncodedPrompt:
    """Render and tokenize a prompt, and read its pictures.

    Raises:
        InferdError: PROMPT_TOO_LONG, by the caller's limit where that is less than the context; and see
            `Tokenizer.encode_chat` and `Pictures.read`.
    """
    read = await pictures.read(prompt, entry, tokenizer, bounds.held_nbytes)
    texts = () if read is None else read.texts
    rendered, ids = await _encode_within(bounds, tokenizer, prompt, texts)
    if not isinstance(prompt, ChatPrompt):
        await pictures.check_ids(ids, entry, prompt_field(prompt))
    return EncodedPrompt(rendered, ids, None if read is None else read.tensors)


async def _encode_within(
    bounds: Bounds, tokenizer: Tokenizer, prompt: Prompt, pictures: Sequence[str]
) -> tuple[str, list[int]]:
    limit_tokens = bounds.limit_tokens
    if limit_tokens is None or 0 < bounds.context_length <= limit_tokens:
        return await _encode(tokenizer, prompt, bounds.context_length, pictures)
    try:
        rendered, ids = await _encode(tokenizer, prompt, limit_tokens + 1, pictures)
    except InferdError as error:
        if error.reason is not Reason.PROMPT_TOO_LONG:
            raise
        counted = int(error.facts["prompt_tokens"])
        raise prompt_over_limit(prompt_field(prompt), counted, limit_tokens, at_least=True) from None
    if len(ids) > limit_tokens:
        raise prompt_over_limit(prompt_field(prompt), len(ids), limit_tokens)
    return rendered, ids


async def _encode(
    tokenizer: Tokenizer, prompt: Prompt, context_length: int, pictures: Sequence[str]
) -> tuple[str, list[int]]:
    """(rendered prompt, ids); off the loop where it may take long."""
    if isinstance(prompt, TokenPrompt):
        return "", list(prompt.ids)
    if _characters(prompt) + sum(map(len, pictures)) <= INLINE_CHARACTERS:
        return _encode_now(tokenizer, prompt, context_length, pictures)
    return await asyncio.to_thread(_encode_now, tokenizer, prompt, context_length, pictures)


def _encode_now(
    tokenizer: Tokenizer, prompt: RawPrompt | ChatPrompt, context_length: int, pictures: Sequence[str]
) -> tuple[str, list[int]]:
    if isinstance(prompt, RawPrompt):
        return prompt.text, tokenizer.encode(prompt.text, context_length=context_length)
    return tokenizer.encode_chat(prompt, context_length=context_length, pictures=pictures)


def _characters(prompt: RawPrompt | ChatPrompt) -> int:
    if isinstance(prompt, RawPrompt):
        return len(prompt.text)
    messages = sum(len(part) + 16 for message in prompt.messages for part in message.text_parts)
    calls = sum(len(call.arguments_json) for message in prompt.messages for call in message.tool_calls)
    tools = sum(len(tool.description) + len(tool.parameters_json) + 64 for tool in prompt.tools)
    return messages + calls + tools
