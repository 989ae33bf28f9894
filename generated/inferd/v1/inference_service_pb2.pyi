from google.protobuf import timestamp_pb2 as _timestamp_pb2
from inferd.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WaitState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_STATE_UNSPECIFIED: _ClassVar[WaitState]
    WAIT_STATE_QUEUED: _ClassVar[WaitState]
    WAIT_STATE_EVICTING: _ClassVar[WaitState]
    WAIT_STATE_LOADING: _ClassVar[WaitState]
    WAIT_STATE_PREEMPTED: _ClassVar[WaitState]

class TextTruncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_TRUNCATION_UNSPECIFIED: _ClassVar[TextTruncation]
    TEXT_TRUNCATION_REFUSE: _ClassVar[TextTruncation]
    TEXT_TRUNCATION_END: _ClassVar[TextTruncation]
WAIT_STATE_UNSPECIFIED: WaitState
WAIT_STATE_QUEUED: WaitState
WAIT_STATE_EVICTING: WaitState
WAIT_STATE_LOADING: WaitState
WAIT_STATE_PREEMPTED: WaitState
TEXT_TRUNCATION_UNSPECIFIED: TextTruncation
TEXT_TRUNCATION_REFUSE: TextTruncation
TEXT_TRUNCATION_END: TextTruncation

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "chat", "tokens", "sampling", "stop", "output", "scheduling", "session_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: str
    chat: _generation_pb2.ChatInput
    tokens: _generation_pb2.TokenInput
    sampling: _generation_pb2.SamplingOptions
    stop: _generation_pb2.StopOptions
    output: _generation_pb2.OutputOptions
    scheduling: _generation_pb2.SchedulingOptions
    session_id: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[str] = ..., chat: _Optional[_Union[_generation_pb2.ChatInput, _Mapping]] = ..., tokens: _Optional[_Union[_generation_pb2.TokenInput, _Mapping]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingOptions, _Mapping]] = ..., stop: _Optional[_Union[_generation_pb2.StopOptions, _Mapping]] = ..., output: _Optional[_Union[_generation_pb2.OutputOptions, _Mapping]] = ..., scheduling: _Optional[_Union[_generation_pb2.SchedulingOptions, _Mapping]] = ..., session_id: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "model", "text", "token_ids", "logprobs", "tool_calls", "finish_reason", "matched_stop", "usage", "timing", "rendered_prompt", "reasoning", "preemptions")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    MATCHED_STOP_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    RENDERED_PROMPT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: _generation_pb2.ServedModel
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    tool_calls: _containers.RepeatedCompositeFieldContainer[_generation_pb2.ToolCall]
    finish_reason: _generation_pb2.FinishReason
    matched_stop: str
    usage: _generation_pb2.Usage
    timing: _generation_pb2.Timing
    rendered_prompt: str
    reasoning: str
    preemptions: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[_generation_pb2.ServedModel, _Mapping]] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[_generation_pb2.ToolCall, _Mapping]]] = ..., finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., matched_stop: _Optional[str] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_generation_pb2.Timing, _Mapping]] = ..., rendered_prompt: _Optional[str] = ..., reasoning: _Optional[str] = ..., preemptions: _Optional[int] = ...) -> None: ...

class StreamGenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "chat", "tokens", "sampling", "stop", "output", "scheduling", "session_id", "stream")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: str
    chat: _generation_pb2.ChatInput
    tokens: _generation_pb2.TokenInput
    sampling: _generation_pb2.SamplingOptions
    stop: _generation_pb2.StopOptions
    output: _generation_pb2.OutputOptions
    scheduling: _generation_pb2.SchedulingOptions
    session_id: str
    stream: StreamOptions
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[str] = ..., chat: _Optional[_Union[_generation_pb2.ChatInput, _Mapping]] = ..., tokens: _Optional[_Union[_generation_pb2.TokenInput, _Mapping]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingOptions, _Mapping]] = ..., stop: _Optional[_Union[_generation_pb2.StopOptions, _Mapping]] = ..., output: _Optional[_Union[_generation_pb2.OutputOptions, _Mapping]] = ..., scheduling: _Optional[_Union[_generation_pb2.SchedulingOptions, _Mapping]] = ..., session_id: _Optional[str] = ..., stream: _Optional[_Union[StreamOptions, _Mapping]] = ...) -> None: ...

class StreamOptions(_message.Message):
    __slots__ = ("waiting_events", "coalesce_ms")
    WAITING_EVENTS_FIELD_NUMBER: _ClassVar[int]
    COALESCE_MS_FIELD_NUMBER: _ClassVar[int]
    waiting_events: bool
    coalesce_ms: int
    def __init__(self, waiting_events: bool = ..., coalesce_ms: _Optional[int] = ...) -> None: ...

class StreamGenerateResponse(_message.Message):
    __slots__ = ("sequence", "waiting", "started", "delta", "finished")
    class Waiting(_message.Message):
        __slots__ = ("state", "queue_position", "load_progress")
        STATE_FIELD_NUMBER: _ClassVar[int]
        QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
        LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
        state: WaitState
        queue_position: int
        load_progress: float
        def __init__(self, state: _Optional[_Union[WaitState, str]] = ..., queue_position: _Optional[int] = ..., load_progress: _Optional[float] = ...) -> None: ...
    class Started(_message.Message):
        __slots__ = ("request_id", "model", "prompt_tokens", "rendered_prompt")
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        RENDERED_PROMPT_FIELD_NUMBER: _ClassVar[int]
        request_id: str
        model: _generation_pb2.ServedModel
        prompt_tokens: int
        rendered_prompt: str
        def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[_generation_pb2.ServedModel, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., rendered_prompt: _Optional[str] = ...) -> None: ...
    class Delta(_message.Message):
        __slots__ = ("text", "reasoning", "token_ids", "logprobs", "tool_calls", "completion_tokens")
        TEXT_FIELD_NUMBER: _ClassVar[int]
        REASONING_FIELD_NUMBER: _ClassVar[int]
        TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        LOGPROBS_FIELD_NUMBER: _ClassVar[int]
        TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
        COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
        text: str
        reasoning: str
        token_ids: _containers.RepeatedScalarFieldContainer[int]
        logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
        tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
        completion_tokens: int
        def __init__(self, text: _Optional[str] = ..., reasoning: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ..., completion_tokens: _Optional[int] = ...) -> None: ...
    class Finished(_message.Message):
        __slots__ = ("finish_reason", "matched_stop", "usage", "timing", "preemptions")
        FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
        MATCHED_STOP_FIELD_NUMBER: _ClassVar[int]
        USAGE_FIELD_NUMBER: _ClassVar[int]
        TIMING_FIELD_NUMBER: _ClassVar[int]
        PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
        finish_reason: _generation_pb2.FinishReason
        matched_stop: str
        usage: _generation_pb2.Usage
        timing: _generation_pb2.Timing
        preemptions: int
        def __init__(self, finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., matched_stop: _Optional[str] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_generation_pb2.Timing, _Mapping]] = ..., preemptions: _Optional[int] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    waiting: StreamGenerateResponse.Waiting
    started: StreamGenerateResponse.Started
    delta: StreamGenerateResponse.Delta
    finished: StreamGenerateResponse.Finished
    def __init__(self, sequence: _Optional[int] = ..., waiting: _Optional[_Union[StreamGenerateResponse.Waiting, _Mapping]] = ..., started: _Optional[_Union[StreamGenerateResponse.Started, _Mapping]] = ..., delta: _Optional[_Union[StreamGenerateResponse.Delta, _Mapping]] = ..., finished: _Optional[_Union[StreamGenerateResponse.Finished, _Mapping]] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments_json")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments_json: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("request_id", "model", "texts", "normalize", "scheduling", "truncation", "dimensions", "prompt_name")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    normalize: bool
    scheduling: _generation_pb2.SchedulingOptions
    truncation: TextTruncation
    dimensions: int
    prompt_name: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., normalize: bool = ..., scheduling: _Optional[_Union[_generation_pb2.SchedulingOptions, _Mapping]] = ..., truncation: _Optional[_Union[TextTruncation, str]] = ..., dimensions: _Optional[int] = ..., prompt_name: _Optional[str] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("request_id", "model", "dimensions", "vectors_f32le", "usage", "truncated_texts", "preemptions")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_F32LE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_TEXTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: _generation_pb2.ServedModel
    dimensions: int
    vectors_f32le: _containers.RepeatedScalarFieldContainer[bytes]
    usage: _generation_pb2.Usage
    truncated_texts: _containers.RepeatedScalarFieldContainer[int]
    preemptions: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[_generation_pb2.ServedModel, _Mapping]] = ..., dimensions: _Optional[int] = ..., vectors_f32le: _Optional[_Iterable[bytes]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., truncated_texts: _Optional[_Iterable[int]] = ..., preemptions: _Optional[int] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("request_id", "model", "query", "documents", "top_n", "return_documents", "truncation", "scheduling")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    RETURN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    return_documents: bool
    truncation: TextTruncation
    scheduling: _generation_pb2.SchedulingOptions
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., return_documents: bool = ..., truncation: _Optional[_Union[TextTruncation, str]] = ..., scheduling: _Optional[_Union[_generation_pb2.SchedulingOptions, _Mapping]] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("request_id", "model", "results", "usage", "truncated_documents", "preemptions")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: _generation_pb2.ServedModel
    results: _containers.RepeatedCompositeFieldContainer[RerankResult]
    usage: _generation_pb2.Usage
    truncated_documents: _containers.RepeatedScalarFieldContainer[int]
    preemptions: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[_generation_pb2.ServedModel, _Mapping]] = ..., results: _Optional[_Iterable[_Union[RerankResult, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., truncated_documents: _Optional[_Iterable[int]] = ..., preemptions: _Optional[int] = ...) -> None: ...

class RerankResult(_message.Message):
    __slots__ = ("index", "score", "document")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    document: str
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., document: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "prompt", "chat", "return_ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    RETURN_IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    chat: _generation_pb2.ChatInput
    return_ids: bool
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., chat: _Optional[_Union[_generation_pb2.ChatInput, _Mapping]] = ..., return_ids: bool = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("count", "token_ids", "context_length")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    count: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    context_length: int
    def __init__(self, count: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., context_length: _Optional[int] = ...) -> None: ...

class CancelGenerationRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelGenerationResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: bool
    def __init__(self, cancelled: bool = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("server_version", "mlx_version", "device", "start_time", "default_contention", "allowed_contention_strategies", "max_message_bytes", "max_queue_length", "draining", "image_limits")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MLX_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_CONTENTION_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_CONTENTION_STRATEGIES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    IMAGE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    mlx_version: str
    device: str
    start_time: _timestamp_pb2.Timestamp
    default_contention: _generation_pb2.ContentionPolicy
    allowed_contention_strategies: _containers.RepeatedScalarFieldContainer[_generation_pb2.ContentionStrategy]
    max_message_bytes: int
    max_queue_length: int
    draining: bool
    image_limits: ImageLimits
    def __init__(self, server_version: _Optional[str] = ..., mlx_version: _Optional[str] = ..., device: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., default_contention: _Optional[_Union[_generation_pb2.ContentionPolicy, _Mapping]] = ..., allowed_contention_strategies: _Optional[_Iterable[_Union[_generation_pb2.ContentionStrategy, str]]] = ..., max_message_bytes: _Optional[int] = ..., max_queue_length: _Optional[int] = ..., draining: bool = ..., image_limits: _Optional[_Union[ImageLimits, _Mapping]] = ...) -> None: ...

class ImageLimits(_message.Message):
    __slots__ = ("max_images", "max_image_bytes", "max_image_pixels", "max_request_pixels")
    MAX_IMAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_PIXELS_FIELD_NUMBER: _ClassVar[int]
    max_images: int
    max_image_bytes: int
    max_image_pixels: int
    max_request_pixels: int
    def __init__(self, max_images: _Optional[int] = ..., max_image_bytes: _Optional[int] = ..., max_image_pixels: _Optional[int] = ..., max_request_pixels: _Optional[int] = ...) -> None: ...
