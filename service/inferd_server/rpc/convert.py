"""Requests from the wire into core words, and events back. Requests have passed rpc/validate.py before."""

from inferd.v1 import generation_pb2, inference_service_pb2
from inferd_server.core.constraints import Constraint, ConstraintKind
from inferd_server.core.generation import (
    ChatPrompt,
    Delta,
    Event,
    Finished,
    GenerationRequest,
    Message,
    OutputChoices,
    Prompt,
    RawPrompt,
    SamplingChoices,
    SchedulingChoices,
    ServedModel,
    Started,
    StopChoices,
    Timing,
    TokenLogprob,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
    Waiting,
)
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.core.model import ContentionPolicy

from .contention import to_policy
from .enums import FINISH_REASON_VALUES, ROLES, WAIT_STATE_VALUES
from .times import to_duration

GenerationMessage = inference_service_pb2.GenerateRequest | inference_service_pb2.StreamGenerateRequest
StreamResponse = inference_service_pb2.StreamGenerateResponse

# --- requests ---------------------------------------------------------------------------------------------------


def to_generation_request(
    message: GenerationMessage,
    template_variables: dict[str, object],
    server_policy: ContentionPolicy,
    media_limits: MediaLimits,
) -> GenerationRequest:
    """A checked request with what the check made of its template's variables; `server_policy` gives what its
    contention policy leaves unset, `media_limits` are its caller's."""
    shape = message.stream if isinstance(message, inference_service_pb2.StreamGenerateRequest) else None
    return GenerationRequest(
        request_id=message.request_id,
        model=message.model,
        prompt=to_prompt(message, template_variables, media_limits),
        sampling=to_sampling(message.sampling),
        stop=to_stop(message.stop),
        output=to_output(message.output),
        scheduling=to_scheduling(message.scheduling, server_policy),
        session_id=message.session_id,
        waiting_events=shape is not None and shape.waiting_events,
        coalesce_seconds=shape.coalesce_ms / 1000 if shape is not None and shape.HasField("coalesce_ms") else None,
    )


def to_prompt(
    message: GenerationMessage | inference_service_pb2.TokenizeRequest,
    template_variables: dict[str, object],
    media_limits: MediaLimits,
) -> Prompt:
    """The input of a checked request."""
    kind = message.WhichOneof("input")
    if kind == "chat":
        return to_chat(message.chat, template_variables, media_limits)
    if kind == "tokens" and not isinstance(message, inference_service_pb2.TokenizeRequest):
        return TokenPrompt(tuple(message.tokens.ids))
    return RawPrompt(message.prompt)


def to_chat(
    chat: generation_pb2.ChatInput, template_variables: dict[str, object], media_limits: MediaLimits
) -> ChatPrompt:
    """A checked chat."""
    return ChatPrompt(
        messages=tuple(to_message(message, f"chat.messages[{i}]") for i, message in enumerate(chat.messages)),
        tools=tuple(Tool(tool.name, tool.description, tool.parameters_json) for tool in chat.tools),
        template_variables=template_variables,
        media_limits=media_limits,
    )


def to_message(message: generation_pb2.ChatMessage, field: str) -> Message:
    """A checked message; `field` is its path in the request."""
    return Message(
        role=ROLES[message.role],
        parts=tuple(to_part(part, f"{field}.parts[{i}]") for i, part in enumerate(message.parts)),
        tool_calls=tuple(ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def to_part(part: generation_pb2.ContentPart, field: str) -> str | Blob:
    """Text, or media with their path in the request."""
    kind = part.WhichOneof("content")
    if kind == "text":
        return part.text
    blob: generation_pb2.Blob = getattr(part, str(kind))
    return Blob(MediaKind(str(kind)), blob.mime_type, blob.data, f"{field}.{kind}")


def to_sampling(sampling: generation_pb2.SamplingOptions) -> SamplingChoices:
    """Sampling as asked for; also of an unchecked request."""
    asked = {field.name: value for field, value in sampling.ListFields() if field.name != "logit_bias"}
    return SamplingChoices(**asked, logit_bias=dict(sampling.logit_bias))


def to_stop(stop: generation_pb2.StopOptions) -> StopChoices:
    """When to stop; also of an unchecked request."""
    return StopChoices(
        max_tokens=stop.max_tokens if stop.HasField("max_tokens") else None,
        sequences=tuple(stop.sequences),
        token_ids=tuple(stop.token_ids),
        ignore_eos=stop.ignore_eos,
    )


def to_output(output: generation_pb2.OutputOptions) -> OutputChoices:
    """What to return, and what it has to satisfy."""
    return OutputChoices(
        token_ids=output.token_ids,
        top_logprobs=output.top_logprobs if output.HasField("top_logprobs") else None,
        rendered_prompt=output.rendered_prompt,
        constraint=to_constraint(output.constraint) if output.HasField("constraint") else None,
    )


def to_constraint(constraint: generation_pb2.OutputConstraint) -> Constraint:
    """A checked constraint."""
    kind = ConstraintKind(constraint.WhichOneof("constraint"))
    if kind is ConstraintKind.CHOICE:
        return Constraint(kind, options=tuple(constraint.choice.options))
    return Constraint(kind, getattr(constraint, kind))


def to_scheduling(scheduling: generation_pb2.SchedulingOptions, server_policy: ContentionPolicy) -> SchedulingChoices:
    """Checked scheduling."""
    return SchedulingChoices(
        contention=to_policy(scheduling.contention, server_policy) if scheduling.HasField("contention") else None,
        priority=scheduling.priority,
        load_if_needed=scheduling.load_if_needed if scheduling.HasField("load_if_needed") else True,
        preemptible=scheduling.preemptible if scheduling.HasField("preemptible") else True,
    )


# --- events -----------------------------------------------------------------------------------------------------


def from_event(sequence: int, event: Event) -> StreamResponse:
    """An event as the stream's message number `sequence`. Deltas come first: they are nearly all of them."""
    if isinstance(event, Delta):
        return StreamResponse(sequence=sequence, delta=from_delta(event))
    if isinstance(event, Started):
        return StreamResponse(sequence=sequence, started=from_started(event))
    if isinstance(event, Finished):
        return StreamResponse(sequence=sequence, finished=from_finished(event))
    return StreamResponse(sequence=sequence, waiting=from_waiting(event))


def from_delta(delta: Delta) -> StreamResponse.Delta:
    """New output."""
    message = StreamResponse.Delta(text=delta.text, completion_tokens=delta.completion_tokens)
    if delta.reasoning:
        message.reasoning = delta.reasoning
    if delta.tool_calls:
        message.tool_calls.extend(map(from_tool_call_delta, delta.tool_calls))
    if delta.token_ids:
        message.token_ids.extend(delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(map(from_logprob, delta.logprobs))
    return message


def from_tool_call_delta(delta: ToolCallDelta) -> inference_service_pb2.ToolCallDelta:
    """A call as its only part."""
    call = delta.call
    return inference_service_pb2.ToolCallDelta(
        index=delta.index, id=call.id, name=call.name, arguments_json=call.arguments_json
    )


def from_tool_call(call: ToolCall) -> generation_pb2.ToolCall:
    """A call of an answer."""
    return generation_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)


def from_started(started: Started) -> StreamResponse.Started:
    """The admission."""
    return StreamResponse.Started(
        request_id=started.request_id,
        model=from_served_model(started.model),
        prompt_tokens=started.prompt_tokens,
        rendered_prompt=started.rendered_prompt,
    )


def from_finished(finished: Finished) -> StreamResponse.Finished:
    """The end."""
    return StreamResponse.Finished(
        finish_reason=FINISH_REASON_VALUES[finished.finish_reason],
        matched_stop=finished.matched_stop,
        usage=from_usage(finished.usage),
        timing=from_timing(finished.timing),
        preemptions=finished.preemptions,
    )


def from_waiting(waiting: Waiting) -> StreamResponse.Waiting:
    """What is waited for."""
    return StreamResponse.Waiting(
        state=WAIT_STATE_VALUES[waiting.state],
        queue_position=waiting.queue_position,
        load_progress=waiting.load_progress,
    )


def from_served_model(model: ServedModel) -> generation_pb2.ServedModel:
    """What served a request."""
    return generation_pb2.ServedModel(name=model.name, revision=model.revision, load_generation=model.load_generation)


def from_usage(usage: Usage) -> generation_pb2.Usage:
    """Token counts."""
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


def from_timing(timing: Timing) -> generation_pb2.Timing:
    """Where the time went."""
    return generation_pb2.Timing(
        queue=to_duration(timing.queue),
        load=to_duration(timing.load),
        prefill=to_duration(timing.prefill),
        decode=to_duration(timing.decode),
        total=to_duration(timing.total),
    )


def from_logprob(logprob: TokenLogprob) -> generation_pb2.TokenLogprob:
    """A token's log probability and its alternatives."""
    return generation_pb2.TokenLogprob(
        token_id=logprob.token_id,
        logprob=logprob.logprob,
        top=[generation_pb2.TopLogprob(token_id=token_id, logprob=value) for token_id, value in logprob.top],
    )


def from_media_limits(limits: MediaLimits) -> inference_service_pb2.ImageLimits:
    """What images may amount to."""
    return inference_service_pb2.ImageLimits(
        max_images=limits.max_images,
        max_image_bytes=limits.max_image_nbytes,
        max_image_pixels=limits.max_image_pixels,
        max_request_pixels=limits.max_request_pixels,
    )


def from_edge(event: Started | Finished) -> inference_service_pb2.GenerateResponse:
    """What the start and the end of a stream add to the answer of a unary call."""
    if isinstance(event, Started):
        return inference_service_pb2.GenerateResponse(
            request_id=event.request_id,
            model=from_served_model(event.model),
            rendered_prompt=event.rendered_prompt,
        )
    return inference_service_pb2.GenerateResponse(
        finish_reason=FINISH_REASON_VALUES[event.finish_reason],
        matched_stop=event.matched_stop,
        usage=from_usage(event.usage),
        timing=from_timing(event.timing),
        preemptions=event.preemptions,
    )
