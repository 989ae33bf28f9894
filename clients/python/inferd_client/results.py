"""What the calls return: plain data. Enumerations are lower-case words, durations seconds, times UTC."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that served a request (what was asked for may be an alias)."""

    name: str
    revision: str
    load_generation: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; prompt_tokens includes the cached ones."""

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in seconds."""

    queue_seconds: float
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural-log probability and its alternatives as (token id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call made by the model."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of the tool call number `index`; id and name come with its first part."""

    index: int
    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer, streamed or not. finish_reason: eos, stop, max_tokens, context_length or tool_calls."""

    request_id: str
    model: ServedModel
    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    matched_stop: str
    usage: Usage
    timing: Timing
    rendered_prompt: str
    preemptions: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running yet (only with waiting_events). state: queued, evicting, loading or preempted."""

    state: str
    queue_position: int
    load_progress: float


@dataclass(frozen=True, slots=True)
class Started:
    """Admitted."""

    request_id: str
    model: ServedModel
    prompt_tokens: int
    rendered_prompt: str


@dataclass(frozen=True, slots=True)
class Delta:
    """New output; completion_tokens counts from the start."""

    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    tool_calls: tuple[ToolCallDelta, ...]
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream that ended well."""

    finish_reason: str
    matched_stop: str
    usage: Usage
    timing: Timing
    preemptions: int


Event = Waiting | Started | Delta | Finished


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a model, in bytes."""

    estimated_bytes: int
    charged_bytes: int
    weights_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class ModelError:
    """Why the last load failed."""

    reason: str
    message: str
    time: datetime | None


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the registry. state: unloaded, queued, loading, loaded, draining, preempting, unloading or failed."""

    name: str
    aliases: tuple[str, ...]
    revision: str
    architecture: str
    capabilities: tuple[str, ...]
    context_length: int
    quantization_bits: int
    state: str
    state_time: datetime | None
    load_progress: float
    last_error: ModelError | None
    load_generation: int
    memory: ModelMemory
    pinned: bool
    running_requests: int
    waiting_requests: int
    last_used_time: datetime | None
    isolation: str


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory budget of all models, in bytes; a ceiling of 0 means that the device reports none."""

    limit_bytes: int
    used_bytes: int
    reserved_bytes: int
    ceiling_bytes: int
    active_bytes: int


@dataclass(frozen=True, slots=True)
class ModelList:
    """The models by name, and the budget. Iterates over the models."""

    models: tuple[Model, ...]
    memory: MemoryBudget

    def __iter__(self) -> Iterator[Model]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Outcome of a load; load_seconds is None if the model was resident. The last three answer validate_only."""

    model: Model
    evicted_models: tuple[str, ...]
    load_seconds: float | None
    memory: MemoryBudget
    fits: bool
    missing_bytes: int
    blocking_models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnloadResult:
    """Outcome of an unload: the bytes given back, measured."""

    model: Model
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """One vector of float32 per text, in order (`numpy.asarray` takes them without a copy).

    truncated_texts: indices of the texts that were cut.
    """

    request_id: str
    model: ServedModel
    dimensions: int
    vectors: tuple["array[float]", ...]
    usage: Usage
    truncated_texts: tuple[int, ...] = ()
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document by its place in the request, and its score: higher is better."""

    index: int
    score: float
    document: str


@dataclass(frozen=True, slots=True)
class Reranking:
    """Documents, the best first.

    truncated_documents: indices of the documents that were cut.
    """

    request_id: str
    model: ServedModel
    results: tuple[Ranked, ...]
    usage: Usage
    truncated_documents: tuple[int, ...] = ()
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token count, the ids if asked for, and the model's context window."""

    count: int
    token_ids: tuple[int, ...]
    context_length: int


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What the images of one request may amount to: how many, bytes and pixels of each, pixels of all together."""

    max_images: int
    max_image_bytes: int
    max_image_pixels: int
    max_request_pixels: int


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Version, limits and defaults of a server; times in seconds, None where the server's default is unset.

    image_limits: None where the server is older than images.
    """

    server_version: str
    mlx_version: str
    device: str
    start_time: datetime | None
    default_strategy: str
    default_wait_timeout: float | None
    default_preempt_after: float | None
    allowed_strategies: tuple[str, ...]
    max_message_bytes: int
    max_queue_length: int
    draining: bool
    image_limits: ImageLimits | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is watched: the first event of a watch."""

    models: tuple[Model, ...]
    memory: MemoryBudget


@dataclass(frozen=True, slots=True)
class Changed:
    """A model's new state, or its load's progress."""

    model: Model


@dataclass(frozen=True, slots=True)
class Removed:
    """A model left the registry."""

    name: str


RegistryEvent = Snapshot | Changed | Removed
