"""From the messages of the contract to the results of `results.py`."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2

from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2
from inferd_client.errors import unreadable
from inferd_client.results import (
    Changed,
    Delta,
    Embedding,
    Event,
    Finished,
    Generation,
    ImageLimits,
    LoadResult,
    MemoryBudget,
    Model,
    ModelError,
    ModelList,
    ModelMemory,
    Ranked,
    RegistryEvent,
    Removed,
    Reranking,
    ServedModel,
    ServerInfo,
    Snapshot,
    Started,
    Timing,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallDelta,
    UnloadResult,
    Usage,
    Waiting,
)


def generation(response: inference_service_pb2.GenerateResponse) -> Generation:
    """The answer of Generate."""
    return Generation(
        request_id=response.request_id,
        model=served_model(response.model),
        text=response.text,
        reasoning=response.reasoning,
        token_ids=tuple(response.token_ids),
        logprobs=_logprobs(response.logprobs),
        tool_calls=tuple(_copied(ToolCall, call) for call in response.tool_calls),
        finish_reason=finish_reason(response.finish_reason),
        matched_stop=response.matched_stop,
        usage=_copied(Usage, response.usage),
        timing=_timing(response.timing),
        rendered_prompt=response.rendered_prompt,
        preemptions=response.preemptions,
    )


def event(response: inference_service_pb2.StreamGenerateResponse) -> Event | None:
    """The event of a stream's message; None for a kind that this client does not know yet."""
    match response.WhichOneof("event"):
        case "delta":
            return _delta(response.delta)
        case "waiting":
            waiting = response.waiting
            state = _word(inference_service_pb2.WaitState, "WAIT_STATE_", waiting.state)
            return Waiting(state, waiting.queue_position, waiting.load_progress)
        case "started":
            started = response.started
            return Started(
                started.request_id, served_model(started.model), started.prompt_tokens, started.rendered_prompt
            )
        case "finished":
            return _finished(response.finished)
    return None


def served_model(message: generation_pb2.ServedModel) -> ServedModel:
    """What served a request."""
    return _copied(ServedModel, message)


def finish_reason(value: int) -> str:
    """Why a generation ended, as a word."""
    return _word(generation_pb2.FinishReason, "FINISH_REASON_", value)


def model(message: model_service_pb2.Model) -> Model:
    """A model."""
    return Model(
        name=message.name,
        aliases=tuple(message.aliases),
        revision=message.revision,
        architecture=message.architecture,
        capabilities=tuple(
            _word(model_service_pb2.ModelCapability, "MODEL_CAPABILITY_", value) for value in message.capabilities
        ),
        context_length=message.context_length,
        quantization_bits=message.quantization_bits,
        state=_word(model_service_pb2.ModelState, "MODEL_STATE_", message.state),
        state_time=_time(message, "state_time"),
        load_progress=message.load_progress,
        last_error=_model_error(message.last_error) if message.HasField("last_error") else None,
        load_generation=message.load_generation,
        memory=_copied(ModelMemory, message.memory),
        pinned=message.pinned,
        running_requests=message.running_requests,
        waiting_requests=message.waiting_requests,
        last_used_time=_time(message, "last_used_time"),
        isolation=_word(model_service_pb2.ModelIsolation, "MODEL_ISOLATION_", message.isolation),
    )


def memory_budget(message: model_service_pb2.MemoryBudget) -> MemoryBudget:
    """The budget."""
    return _copied(MemoryBudget, message)


def model_list(pages: Sequence[model_service_pb2.ListModelsResponse]) -> ModelList:
    """All models of the pages; the budget of the last one."""
    return ModelList(tuple(model(each) for page in pages for each in page.models), memory_budget(pages[-1].memory))


def load_result(response: model_service_pb2.LoadModelResponse) -> LoadResult:
    """The outcome of LoadModel."""
    return LoadResult(
        model=model(response.model),
        evicted_models=tuple(response.evicted_models),
        load_seconds=_optional_seconds(response, "load_time"),
        memory=memory_budget(response.memory),
        fits=response.fits,
        missing_bytes=response.missing_bytes,
        blocking_models=tuple(response.blocking_models),
    )


def unload_result(response: model_service_pb2.UnloadModelResponse) -> UnloadResult:
    """The outcome of UnloadModel."""
    return UnloadResult(model(response.model), response.freed_bytes)


def embedding(response: inference_service_pb2.EmbedResponse) -> Embedding:
    """The vectors of Embed."""
    return Embedding(
        request_id=response.request_id,
        model=served_model(response.model),
        dimensions=response.dimensions,
        vectors=tuple(_vector(data) for data in response.vectors_f32le),
        usage=_copied(Usage, response.usage),
        truncated_texts=tuple(response.truncated_texts),
        preemptions=response.preemptions,
    )


def reranking(response: inference_service_pb2.RerankResponse, documents: Sequence[str]) -> Reranking:
    """The results of Rerank, each with its document: those of the request, in their order."""
    return Reranking(
        request_id=response.request_id,
        model=served_model(response.model),
        results=tuple(_ranked(each, documents) for each in response.results),
        usage=_copied(Usage, response.usage),
        truncated_documents=tuple(response.truncated_documents),
        preemptions=response.preemptions,
    )


def _ranked(result: inference_service_pb2.RerankResult, documents: Sequence[str]) -> Ranked:
    if result.index >= len(documents):
        raise unreadable(f"a result for document {result.index} of {len(documents)}")
    return Ranked(result.index, result.score, documents[result.index])


def tokens(response: inference_service_pb2.TokenizeResponse) -> Tokens:
    """The count of Tokenize."""
    return Tokens(response.count, tuple(response.token_ids), response.context_length)


def server_info(response: inference_service_pb2.GetServerInfoResponse) -> ServerInfo:
    """What GetServerInfo says."""
    contention = response.default_contention
    return ServerInfo(
        server_version=response.server_version,
        mlx_version=response.mlx_version,
        device=response.device,
        start_time=_time(response, "start_time"),
        default_strategy=_strategy(contention.strategy),
        default_wait_timeout=_optional_seconds(contention, "wait_timeout"),
        default_preempt_after=_optional_seconds(contention, "preempt_after"),
        allowed_strategies=tuple(_strategy(value) for value in response.allowed_contention_strategies),
        max_message_bytes=response.max_message_bytes,
        max_queue_length=response.max_queue_length,
        draining=response.draining,
        image_limits=_copied(ImageLimits, response.image_limits) if response.HasField("image_limits") else None,
    )


def health(response: health_pb2.HealthCheckResponse) -> str:
    """serving, not_serving, unknown or service_unknown."""
    return _word(health_pb2.HealthCheckResponse.ServingStatus, "", response.status)


def registry_event(response: model_service_pb2.WatchModelsResponse) -> RegistryEvent | None:
    """The event of a watch's message; None for heartbeats and kinds that this client does not know yet."""
    match response.WhichOneof("event"):
        case "snapshot":
            return Snapshot(
                tuple(model(each) for each in response.snapshot.models), memory_budget(response.snapshot.memory)
            )
        case "changed":
            return Changed(model(response.changed))
        case "removed_name":
            return Removed(response.removed_name)
    return None


def _delta(delta: inference_service_pb2.StreamGenerateResponse.Delta) -> Delta:
    return Delta(
        text=delta.text,
        reasoning=delta.reasoning,
        token_ids=tuple(delta.token_ids),
        logprobs=_logprobs(delta.logprobs),
        tool_calls=tuple(_copied(ToolCallDelta, call) for call in delta.tool_calls),
        completion_tokens=delta.completion_tokens,
    )


def _finished(finished: inference_service_pb2.StreamGenerateResponse.Finished) -> Finished:
    return Finished(
        finish_reason=finish_reason(finished.finish_reason),
        matched_stop=finished.matched_stop,
        usage=_copied(Usage, finished.usage),
        timing=_timing(finished.timing),
        preemptions=finished.preemptions,
    )


def _logprobs(messages: Any) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(each.token_id, each.logprob, tuple((top.token_id, top.logprob) for top in each.top))
        for each in messages
    )


def _timing(message: generation_pb2.Timing) -> Timing:
    return Timing(
        queue_seconds=_seconds(message.queue),
        load_seconds=_seconds(message.load),
        prefill_seconds=_seconds(message.prefill),
        decode_seconds=_seconds(message.decode),
        total_seconds=_seconds(message.total),
    )


def _model_error(message: model_service_pb2.ModelError) -> ModelError:
    return ModelError(message.reason, message.message, _time(message, "time"))


def _vector(data: bytes) -> "array[float]":
    vector = array("f")
    if len(data) % vector.itemsize:
        raise unreadable(f"a vector of {len(data)} bytes is no row of 32-bit numbers")
    vector.frombytes(data)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


_Record = TypeVar("_Record")


def _copied(record: type[_Record], message: Message) -> _Record:
    """A record whose fields are plain values of the message under the same names."""
    return record(*(getattr(message, field.name) for field in fields(record)))  # type: ignore[arg-type]  # a dataclass


def _strategy(value: int) -> str:
    return _word(generation_pb2.ContentionStrategy, "CONTENTION_STRATEGY_", value)


def _word(enum: Any, prefix: str, value: int) -> str:
    """`MODEL_STATE_LOADED` → `loaded`; a value that this client does not know yet → its number."""
    name: str = enum.Name(value) if value in enum.values() else str(value)
    return name.removeprefix(prefix).lower()


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _optional_seconds(message: Message, field: str) -> float | None:
    return _seconds(getattr(message, field)) if message.HasField(field) else None


def _time(message: Message, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    time: Timestamp = getattr(message, field)
    try:
        return time.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):  # not a time of this calendar: not worth losing the rest of the answer
        return None
