"""The words and keyword options that the calls take; both clients and the type checker read them from here."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from inferd.v1 import generation_pb2
from inferd_client.media import Image

Strategy = Literal["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
Truncation = Literal["refuse", "end"]
UnloadMode = Literal["drain", "if_idle", "force"]
State = Literal["unloaded", "queued", "loading", "loaded", "draining", "preempting", "unloading", "failed"]
# What a message says: text, an image, or several of both in their order.
Content = str | Image | Sequence[str | Image | Mapping[str, Any] | generation_pb2.ContentPart]
# (role, content), a mapping with role and content (and tool_calls, tool_call_id, name), or the contract's own message.
# tool_calls are those of an answer, or mappings with id, name and arguments.
Message = tuple[str, Content] | Mapping[str, Any] | generation_pb2.ChatMessage
# A mapping with name, description and parameters (a JSON Schema), or the contract's own message.
Tool = Mapping[str, Any] | generation_pb2.Tool


class ContentionOptions(TypedDict, total=False):
    """What to do when a model does not fit beside the resident ones; left out (or None): as the server is configured.

    wait_timeout: longest wait for room, in seconds. preempt_after: wait before the first preemption, in seconds.
    """

    strategy: Strategy | None
    wait_timeout: float | None
    preempt_after: float | None


class SchedulingOptions(ContentionOptions, total=False):
    """How a request waits for its model; what is left out (or None) is the server's default.

    priority: higher runs first, within ±100.
    load_if_needed: False refuses instead of loading. preemptible: False forbids interruption.
    """

    priority: int | None
    load_if_needed: bool | None
    preemptible: bool | None


class EmbedOptions(SchedulingOptions, total=False):
    """Options of an embedding; what is left out (or None) is the model's default.

    normalize: scale each vector to length 1.
    truncation: `end` cuts texts that are longer than the model reads (`Embedding.truncated_texts` tells which); else
        they are refused.
    dimensions: keep only the first so many numbers of each vector.
    prompt_name: which of the model's prompts to put before each text (`query`, `document`).
    request_id: names the request for `cancel` and in logs.
    """

    normalize: bool | None
    truncation: Truncation | None
    dimensions: int | None
    prompt_name: str | None
    request_id: str | None


class RerankOptions(SchedulingOptions, total=False):
    """Options of a reranking; what is left out (or None) is the server's default.

    top_n: only the best so many.
    truncation: `end` cuts documents that are longer than the model reads beside the query
        (`Reranking.truncated_documents` tells which); else they are refused.
    request_id: names the request for `cancel` and in logs.
    """

    top_n: int | None
    truncation: Truncation | None
    request_id: str | None


class GenerationOptions(SchedulingOptions, total=False):
    """Options of a generation, named as in the contract; what is left out (or None) is the model's default.

    temperature, top_p, top_k, min_p, repetition_penalty, repetition_window, presence_penalty, frequency_penalty, seed,
    logit_bias: sampling.
    max_tokens, stop (texts), stop_token_ids, ignore_eos: when to stop.
    return_token_ids, top_logprobs, return_rendered_prompt: what to return beside the text.
    json_schema (text or mapping), regex, lark_grammar, choice: at most one, a constraint on the output.
    tools, template_variables: for the chat template.
    request_id: names the request for `cancel` and in logs. session_id: groups requests that share a prefix.
    """

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    repetition_window: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    logit_bias: Mapping[int, float] | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    return_token_ids: bool | None
    top_logprobs: int | None
    return_rendered_prompt: bool | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    lark_grammar: str | None
    choice: Sequence[str] | None
    tools: Sequence[Tool] | None
    template_variables: Mapping[str, Any] | None
    request_id: str | None
    session_id: str | None


class StreamOptions(GenerationOptions, total=False):
    """GenerationOptions and the shape of the stream.

    waiting_events: report the wait before the start (such a call is not retried once one came).
    coalesce_ms: tokens of so many milliseconds share a delta; 0 adds no delay.
    """

    waiting_events: bool | None
    coalesce_ms: int | None
