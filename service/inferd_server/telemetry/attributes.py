"""What spans say: names after OpenTelemetry's conventions for RPC and GenAI, else `inferd.…`.

No text of a prompt, a stop sequence or an output, unless `of_prompt` is asked for.
"""

import json
from collections.abc import Iterator, Mapping

from inferd_server.core.embedding import EmbedRequest
from inferd_server.core.errors import echo
from inferd_server.core.generation import ChatPrompt, GenerationRequest, RawPrompt
from inferd_server.core.observer import CallEnd, ModelRequest
from inferd_server.core.reranking import RerankRequest

Attributes = Mapping[str, str | int | float | bool | list[str]]

SERVER_ERRORS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Codes that say that the server failed; others are the caller's or a refusal, and no error of a server's span."""

MAX_PROMPT_CHARACTERS = 32_768


def of_call(method: str) -> Attributes:
    """Of an RPC as it begins."""
    return {"rpc.system.name": "grpc", "rpc.method": method.removeprefix("/")}


def of_request(request: ModelRequest) -> Attributes:
    """What a request asks for."""
    return {
        "gen_ai.operation.name": _operation(request),
        "gen_ai.provider.name": "inferd",
        "gen_ai.request.model": echo(request.model),
        "inferd.priority": request.scheduling.priority,
        **_of_options(request),
    }


def _operation(request: ModelRequest) -> str:
    if isinstance(request, EmbedRequest):
        return "embeddings"
    if isinstance(request, RerankRequest):
        return "rerank"
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"


def _of_options(request: ModelRequest) -> Attributes:
    if isinstance(request, EmbedRequest):
        return _of_embedding(request)
    return {} if isinstance(request, RerankRequest) else _of_sampling(request)


def _of_embedding(request: EmbedRequest) -> Attributes:
    return {"gen_ai.embeddings.dimension.count": request.dimensions} if request.dimensions else {}


def _of_sampling(request: GenerationRequest) -> Attributes:
    sampling = request.sampling
    asked = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "max_tokens": request.stop.max_tokens,
    }
    # A seed may have 64 bits without a sign, an attribute has one.
    return {f"gen_ai.request.{key}": _signed(value) for key, value in asked.items() if value is not None}


def _signed(value: float) -> float:
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def of_prompt(request: ModelRequest) -> Attributes:
    """The texts of a request, up to MAX_PROMPT_CHARACTERS in all; a prompt of token ids has none."""
    messages = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in _cut(_texts(request))]
    return {"gen_ai.input.messages": json.dumps(messages)} if messages else {}


def _texts(request: ModelRequest) -> Iterator[tuple[str, str]]:
    if isinstance(request, EmbedRequest):
        yield from (("user", text) for text in request.texts)
    elif isinstance(request, RerankRequest):
        yield from (("user", text) for text in (request.query, *request.documents))
    elif isinstance(request.prompt, RawPrompt):
        yield "user", request.prompt.text
    elif isinstance(request.prompt, ChatPrompt):
        for message in request.prompt.messages:
            for text in message.text_parts:
                yield message.role.value, text


def _cut(texts: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    left = MAX_PROMPT_CHARACTERS
    for role, text in texts:
        if left <= 0:
            return
        yield role, text[:left]
        left -= len(text) + 1


def of_end(end: CallEnd) -> Attributes:
    """How an RPC ended."""
    host, _, port = end.peer.rpartition(":")
    attributes: dict[str, str | int | float | bool | list[str]] = {"rpc.response.status_code": end.code}
    if port.isdecimal():
        attributes |= {"network.peer.address": host.strip("[]"), "network.peer.port": int(port)}
    if end.code != "OK":
        attributes["error.type"] = end.reason or end.code
    if end.model:
        attributes["inferd.model"] = end.model
    if end.request_id:
        attributes["inferd.request_id"] = end.request_id
    return {**attributes, **_of_generation(end)} if end.load_generation else attributes


def _of_generation(end: CallEnd) -> Attributes:
    """Of a generation request that had a row."""
    finish = {"gen_ai.response.finish_reasons": [end.finish_reason]} if end.finish_reason else {}
    return {
        "gen_ai.response.model": end.model,
        "gen_ai.response.id": end.request_id,
        "gen_ai.usage.input_tokens": end.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": end.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": end.usage.cached_prompt_tokens,
        "inferd.load_generation": end.load_generation,
        "inferd.preemptions": end.preemptions,
        **finish,
    }
