"""From Python arguments to the messages of the contract; a bad value is refused with the option's name."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from google.protobuf.duration_pb2 import Duration

from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2
from inferd_client.errors import invalid_parameter
from inferd_client.media import Image
from inferd_client.options import (
    ContentionOptions,
    EmbedOptions,
    GenerationOptions,
    Message,
    RerankOptions,
    State,
    StreamOptions,
    Tool,
    UnloadMode,
)
from inferd_client.results import ToolCall

_Request = TypeVar(
    "_Request",
    inference_service_pb2.GenerateRequest,
    inference_service_pb2.StreamGenerateRequest,
    inference_service_pb2.TokenizeRequest,
)
_Generation = TypeVar("_Generation", inference_service_pb2.GenerateRequest, inference_service_pb2.StreamGenerateRequest)

# Option → field of the request, where the two are the same but for their place.
_FIELDS = {
    **{
        name: ("sampling", name)
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "repetition_window",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "logit_bias",
        )
    },
    "max_tokens": ("stop", "max_tokens"),
    "stop": ("stop", "sequences"),
    "stop_token_ids": ("stop", "token_ids"),
    "ignore_eos": ("stop", "ignore_eos"),
    "return_token_ids": ("output", "token_ids"),
    "top_logprobs": ("output", "top_logprobs"),
    "return_rendered_prompt": ("output", "rendered_prompt"),
    "json_schema": ("output.constraint", "json_schema"),
    "regex": ("output.constraint", "regex"),
    "lark_grammar": ("output.constraint", "lark_grammar"),
    "choice": ("output.constraint.choice", "options"),
    "wait_timeout": ("scheduling.contention", "wait_timeout"),
    "preempt_after": ("scheduling.contention", "preempt_after"),
    "strategy": ("scheduling.contention", "strategy"),
    "priority": ("scheduling", "priority"),
    "load_if_needed": ("scheduling", "load_if_needed"),
    "preemptible": ("scheduling", "preemptible"),
    **{name: ("", name) for name in ("normalize", "truncation", "dimensions", "prompt_name", "top_n")},
    "request_id": ("", "request_id"),
    "session_id": ("", "session_id"),
    "waiting_events": ("stream", "waiting_events"),
    "coalesce_ms": ("stream", "coalesce_ms"),
}
_CHAT_OPTIONS = ("tools", "template_variables")
_MAX_DURATION_SECONDS = 315_576_000_000  # of google.protobuf.Duration: about 10,000 years
_CONSTRAINTS = ("json_schema", "regex", "lark_grammar", "choice")


def generate(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    options: GenerationOptions,
) -> inference_service_pb2.GenerateRequest:
    """The request of Generate; exactly one of prompt, messages and token_ids is not None."""
    allowed = GenerationOptions.__annotations__.keys()
    return _generation(
        inference_service_pb2.GenerateRequest(), model, prompt, messages, token_ids, cast("Any", options), allowed
    )


def stream(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    options: StreamOptions,
) -> inference_service_pb2.StreamGenerateRequest:
    """The request of StreamGenerate; exactly one of prompt, messages and token_ids is not None."""
    allowed = StreamOptions.__annotations__.keys()
    return _generation(
        inference_service_pb2.StreamGenerateRequest(), model, prompt, messages, token_ids, cast("Any", options), allowed
    )


def embed(model: str, texts: Sequence[str], options: EmbedOptions) -> inference_service_pb2.EmbedRequest:
    """The request of Embed."""
    request = inference_service_pb2.EmbedRequest()
    _put("model", request, "model", model)
    _put("texts", request, "texts", _not_a_string("texts", texts))
    _put_options(request, cast("Any", options), EmbedOptions.__annotations__.keys())
    return request


def rerank(
    model: str, query: str, documents: Sequence[str], options: RerankOptions
) -> inference_service_pb2.RerankRequest:
    """The request of Rerank. Documents are not asked back: the caller has them."""
    request = inference_service_pb2.RerankRequest()
    _put("model", request, "model", model)
    _put("query", request, "query", query)
    _put("documents", request, "documents", _not_a_string("documents", documents))
    _put_options(request, cast("Any", options), RerankOptions.__annotations__.keys())
    return request


def tokenize(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    return_ids: bool,
    tools: Sequence[Tool] | None,
    template_variables: Mapping[str, Any] | None,
) -> inference_service_pb2.TokenizeRequest:
    """The request of Tokenize; exactly one of prompt and messages is not None."""
    request = inference_service_pb2.TokenizeRequest(return_ids=return_ids)
    _put("model", request, "model", model)
    _one_of(prompt=prompt, messages=messages)
    _put_text_or_chat(request, prompt, messages, tools, template_variables)
    return request


def load(
    name: str, *, detach: bool, validate_only: bool, pin: bool | None, reload: bool, contention: ContentionOptions
) -> model_service_pb2.LoadModelRequest:
    """The request of LoadModel."""
    request = model_service_pb2.LoadModelRequest(detach=detach, validate_only=validate_only, reload=reload)
    _put("name", request, "name", name)
    _put("pin", request, "pin", pin)
    _only(contention, ContentionOptions.__annotations__.keys(), "")
    for option, value in contention.items():
        if value is not None:
            _put(option, request.contention, option, _CONVERSIONS[option](value))
    return request


def unload(name: str, mode: UnloadMode | None, drain_timeout: float | None) -> model_service_pb2.UnloadModelRequest:
    """The request of UnloadModel; drain_timeout in seconds."""
    request = model_service_pb2.UnloadModelRequest()
    _put("name", request, "name", name)
    if mode is not None:
        _put("mode", request, "mode", _enum("mode", model_service_pb2.UnloadMode, "UNLOAD_MODE_", mode))
    if drain_timeout is not None:
        request.drain_timeout.CopyFrom(_duration("drain_timeout", drain_timeout))
    return request


def list_models(states: Iterable[State]) -> model_service_pb2.ListModelsRequest:
    """The request of the first page of ListModels."""
    return model_service_pb2.ListModelsRequest(
        states=[_enum("states", model_service_pb2.ModelState, "MODEL_STATE_", state) for state in states]
    )


def next_page(
    request: model_service_pb2.ListModelsRequest, page: model_service_pb2.ListModelsResponse
) -> model_service_pb2.ListModelsRequest | None:
    """The request of the page after `page`; None after the last."""
    if not page.next_page_token:
        return None
    return model_service_pb2.ListModelsRequest(states=request.states, page_token=page.next_page_token)


def _generation(
    request: _Generation,
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    options: Mapping[str, Any],
    allowed: Iterable[str],
) -> _Generation:
    _put("model", request, "model", model)
    _one_of(prompt=prompt, messages=messages, token_ids=token_ids)
    if token_ids is not None:
        request.tokens.SetInParent()
        _put("token_ids", request.tokens, "ids", token_ids)
    else:
        _put_text_or_chat(request, prompt, messages, options.get("tools"), options.get("template_variables"))
    _put_options(request, options, allowed)
    return request


def _put_text_or_chat(
    request: _Request,
    prompt: str | None,
    messages: Sequence[Message] | None,
    tools: Sequence[Tool] | None,
    template_variables: Mapping[str, Any] | None,
) -> None:
    if messages is None:
        _put("prompt", request, "prompt", prompt)
        return
    request.chat.messages.extend(_message(message, f"messages[{i}]") for i, message in enumerate(messages))
    request.chat.SetInParent()  # an empty chat is the server's to refuse, not a missing input
    request.chat.tools.extend(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ()))
    if template_variables is not None:
        request.chat.template_variables_json = _json("template_variables", template_variables)


def _message(message: Message, option: str) -> generation_pb2.ChatMessage:
    if isinstance(message, generation_pb2.ChatMessage):
        return message
    if not isinstance(message, Mapping):
        if not isinstance(message, tuple) or len(message) != 2:
            raise TypeError(f"{option}: (role, content), a mapping or a ChatMessage, not {message!r}")
        message = dict(zip(("role", "content"), message, strict=True))
    _only(message, ("role", "content", "tool_calls", "tool_call_id", "name"), option)
    built = generation_pb2.ChatMessage(
        role=_enum(f"{option}.role", generation_pb2.Role, "ROLE_", message.get("role", ""))
    )
    content = message.get("content")
    for part in [content] if isinstance(content, str | Image) else content or ():
        built.parts.append(_part(part, f"{option}.content"))
    for i, call in enumerate(message.get("tool_calls", ())):
        built.tool_calls.append(_tool_call(call, f"{option}.tool_calls[{i}]"))
    for name in ("tool_call_id", "name"):
        _put(f"{option}.{name}", built, name, message.get(name))
    return built


def _part(part: object, option: str) -> generation_pb2.ContentPart:
    if isinstance(part, generation_pb2.ContentPart):
        return part
    if isinstance(part, Image):
        return generation_pb2.ContentPart(image=generation_pb2.Blob(mime_type=part.mime_type, data=part.data))
    if isinstance(part, Mapping) and part.get("type", "text") == "text":
        part = part.get("text")
    if not isinstance(part, str):
        raise TypeError(f"{option}: text, an Image or the contract's ContentPart, not {type(part).__name__}")
    built = generation_pb2.ContentPart()
    _put(option, built, "text", part)
    return built


def _tool_call(call: object, option: str) -> generation_pb2.ToolCall:
    """A call as an answer gave it, or as a mapping (with its arguments as a mapping or as JSON text)."""
    if isinstance(call, generation_pb2.ToolCall):
        return call
    if isinstance(call, ToolCall):
        return generation_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)
    if not isinstance(call, Mapping):
        raise TypeError(f"{option}: a ToolCall or a mapping, not {type(call).__name__}")
    _only(call, ("id", "name", "arguments", "arguments_json"), option)
    built = generation_pb2.ToolCall()
    for name in ("id", "name", "arguments_json"):
        _put(f"{option}.{name}", built, name, call.get(name))
    if "arguments" in call:
        built.arguments_json = _json(f"{option}.arguments", call["arguments"])
    return built


def _tool(tool: Tool, option: str) -> generation_pb2.Tool:
    if isinstance(tool, generation_pb2.Tool):
        return tool
    _only(tool, ("name", "description", "parameters"), option)
    return generation_pb2.Tool(
        name=tool.get("name", ""),
        description=tool.get("description", ""),
        parameters_json=_json(f"{option}.parameters", tool.get("parameters", {})),
    )


def _put_options(request: Any, options: Mapping[str, Any], allowed: Iterable[str]) -> None:
    _only(options, allowed, "")
    given = {option: value for option, value in options.items() if value is not None}
    if len(constraints := [option for option in _CONSTRAINTS if option in given]) > 1:
        raise invalid_parameter(constraints[1], f"excludes {constraints[0]}: a request has one constraint")
    for option, value in given.items():
        if option not in _CHAT_OPTIONS:
            path, field = _FIELDS[option]
            _put(option, _at(request, path), field, _CONVERSIONS.get(option, _as_it_is)(value))


def _at(message: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        message = getattr(message, name)
    return message


def _put(option: str, message: Any, field: str, value: object) -> None:
    """Sets a field; None leaves it unset; protobuf's refusals are told with the option's name."""
    if value is None:
        return
    try:
        if isinstance(value, Duration):
            getattr(message, field).CopyFrom(value)
        elif isinstance(value, Mapping):
            getattr(message, field).update(value)
        elif isinstance(value, str | int | float):
            setattr(message, field, value)
        else:
            message.SetInParent()
            getattr(message, field).extend(value)
    except (TypeError, AttributeError) as error:  # AttributeError: one value where the contract has a list
        raise TypeError(f"{option}: {error}") from None
    except ValueError as error:
        raise invalid_parameter(option, str(error)) from None


def _as_it_is(value: Any) -> Any:
    return value


def _strategy(value: str) -> int:
    return int(_enum("strategy", generation_pb2.ContentionStrategy, "CONTENTION_STRATEGY_", value))


def _truncation(value: str) -> int:
    return int(_enum("truncation", inference_service_pb2.TextTruncation, "TEXT_TRUNCATION_", value))


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "strategy": _strategy,
    "truncation": _truncation,
    "wait_timeout": lambda seconds: _duration("wait_timeout", seconds),
    "preempt_after": lambda seconds: _duration("preempt_after", seconds),
    "stop": lambda stop: [stop] if isinstance(stop, str) else stop,
    "choice": lambda choice: _not_a_string("choice", choice),
    "json_schema": lambda schema: schema if isinstance(schema, str) else _json("json_schema", schema),
}


def _enum(option: str, enum: Any, prefix: str, value: str) -> Any:
    names = {name.removeprefix(prefix).lower(): number for name, number in enum.items() if number != 0}
    if value not in names:
        raise invalid_parameter(option, f"{value!r} is none of {', '.join(names)}")
    return names[value]


def _duration(option: str, seconds: float) -> Duration:
    if not math.isfinite(seconds) or abs(seconds) > _MAX_DURATION_SECONDS:
        raise invalid_parameter(option, "is no number of seconds that protobuf can hold")
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _json(option: str, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise invalid_parameter(option, f"is no JSON: {error}") from None


def _only(given: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    if unknown := sorted(given.keys() - set(allowed)):
        raise TypeError(f"{where or 'options'}: unknown: {', '.join(unknown)}")


def _one_of(**inputs: object) -> None:
    if sum(value is not None for value in inputs.values()) != 1:
        raise invalid_parameter("prompt", f"give exactly one of {', '.join(inputs)}")


def _not_a_string(option: str, texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise TypeError(f"{option}: a list of strings, not one string")
    return texts
