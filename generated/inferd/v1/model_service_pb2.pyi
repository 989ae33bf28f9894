from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from inferd.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_UNLOADED: _ClassVar[ModelState]
    MODEL_STATE_QUEUED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_LOADED: _ClassVar[ModelState]
    MODEL_STATE_DRAINING: _ClassVar[ModelState]
    MODEL_STATE_PREEMPTING: _ClassVar[ModelState]
    MODEL_STATE_UNLOADING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]

class ModelCapability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_CAPABILITY_UNSPECIFIED: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_GENERATE: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_CHAT: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_EMBED: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_VISION: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_TOOLS: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_RERANK: _ClassVar[ModelCapability]

class ModelIsolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_ISOLATION_UNSPECIFIED: _ClassVar[ModelIsolation]
    MODEL_ISOLATION_THREAD: _ClassVar[ModelIsolation]
    MODEL_ISOLATION_PROCESS: _ClassVar[ModelIsolation]

class UnloadMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNLOAD_MODE_UNSPECIFIED: _ClassVar[UnloadMode]
    UNLOAD_MODE_DRAIN: _ClassVar[UnloadMode]
    UNLOAD_MODE_IF_IDLE: _ClassVar[UnloadMode]
    UNLOAD_MODE_FORCE: _ClassVar[UnloadMode]
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_UNLOADED: ModelState
MODEL_STATE_QUEUED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_LOADED: ModelState
MODEL_STATE_DRAINING: ModelState
MODEL_STATE_PREEMPTING: ModelState
MODEL_STATE_UNLOADING: ModelState
MODEL_STATE_FAILED: ModelState
MODEL_CAPABILITY_UNSPECIFIED: ModelCapability
MODEL_CAPABILITY_GENERATE: ModelCapability
MODEL_CAPABILITY_CHAT: ModelCapability
MODEL_CAPABILITY_EMBED: ModelCapability
MODEL_CAPABILITY_VISION: ModelCapability
MODEL_CAPABILITY_TOOLS: ModelCapability
MODEL_CAPABILITY_RERANK: ModelCapability
MODEL_ISOLATION_UNSPECIFIED: ModelIsolation
MODEL_ISOLATION_THREAD: ModelIsolation
MODEL_ISOLATION_PROCESS: ModelIsolation
UNLOAD_MODE_UNSPECIFIED: UnloadMode
UNLOAD_MODE_DRAIN: UnloadMode
UNLOAD_MODE_IF_IDLE: UnloadMode
UNLOAD_MODE_FORCE: UnloadMode

class Model(_message.Message):
    __slots__ = ("name", "aliases", "revision", "architecture", "capabilities", "context_length", "quantization_bits", "state", "state_time", "load_progress", "last_error", "load_generation", "memory", "pinned", "running_requests", "waiting_requests", "last_used_time", "isolation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_BITS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    LOAD_GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_TIME_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    architecture: str
    capabilities: _containers.RepeatedScalarFieldContainer[ModelCapability]
    context_length: int
    quantization_bits: int
    state: ModelState
    state_time: _timestamp_pb2.Timestamp
    load_progress: float
    last_error: ModelError
    load_generation: int
    memory: ModelMemory
    pinned: bool
    running_requests: int
    waiting_requests: int
    last_used_time: _timestamp_pb2.Timestamp
    isolation: ModelIsolation
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., architecture: _Optional[str] = ..., capabilities: _Optional[_Iterable[_Union[ModelCapability, str]]] = ..., context_length: _Optional[int] = ..., quantization_bits: _Optional[int] = ..., state: _Optional[_Union[ModelState, str]] = ..., state_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., load_progress: _Optional[float] = ..., last_error: _Optional[_Union[ModelError, _Mapping]] = ..., load_generation: _Optional[int] = ..., memory: _Optional[_Union[ModelMemory, _Mapping]] = ..., pinned: bool = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., last_used_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., isolation: _Optional[_Union[ModelIsolation, str]] = ...) -> None: ...

class ModelMemory(_message.Message):
    __slots__ = ("estimated_bytes", "charged_bytes", "weights_bytes", "cache_bytes")
    ESTIMATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHARGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    estimated_bytes: int
    charged_bytes: int
    weights_bytes: int
    cache_bytes: int
    def __init__(self, estimated_bytes: _Optional[int] = ..., charged_bytes: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., cache_bytes: _Optional[int] = ...) -> None: ...

class ModelError(_message.Message):
    __slots__ = ("reason", "message", "time")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class MemoryBudget(_message.Message):
    __slots__ = ("limit_bytes", "used_bytes", "reserved_bytes", "ceiling_bytes", "active_bytes")
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CEILING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    limit_bytes: int
    used_bytes: int
    reserved_bytes: int
    ceiling_bytes: int
    active_bytes: int
    def __init__(self, limit_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., ceiling_bytes: _Optional[int] = ..., active_bytes: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[ModelState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[ModelState, str]]] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token", "memory")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    memory: MemoryBudget
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., memory: _Optional[_Union[MemoryBudget, _Mapping]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("name", "contention", "detach", "validate_only", "pin", "reload")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENTION_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    RELOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    contention: _generation_pb2.ContentionPolicy
    detach: bool
    validate_only: bool
    pin: bool
    reload: bool
    def __init__(self, name: _Optional[str] = ..., contention: _Optional[_Union[_generation_pb2.ContentionPolicy, _Mapping]] = ..., detach: bool = ..., validate_only: bool = ..., pin: bool = ..., reload: bool = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model", "evicted_models", "load_time", "memory", "fits", "missing_bytes", "blocking_models")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_MODELS_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    MISSING_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_MODELS_FIELD_NUMBER: _ClassVar[int]
    model: Model
    evicted_models: _containers.RepeatedScalarFieldContainer[str]
    load_time: _duration_pb2.Duration
    memory: MemoryBudget
    fits: bool
    missing_bytes: int
    blocking_models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., evicted_models: _Optional[_Iterable[str]] = ..., load_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., memory: _Optional[_Union[MemoryBudget, _Mapping]] = ..., fits: bool = ..., missing_bytes: _Optional[int] = ..., blocking_models: _Optional[_Iterable[str]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("name", "mode", "drain_timeout")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: UnloadMode
    drain_timeout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[_Union[UnloadMode, str]] = ..., drain_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("model", "freed_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: Model
    freed_bytes: int
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., freed_bytes: _Optional[int] = ...) -> None: ...

class WatchModelsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchModelsResponse(_message.Message):
    __slots__ = ("sequence", "snapshot", "changed", "removed_name", "heartbeat")
    class Snapshot(_message.Message):
        __slots__ = ("models", "memory")
        MODELS_FIELD_NUMBER: _ClassVar[int]
        MEMORY_FIELD_NUMBER: _ClassVar[int]
        models: _containers.RepeatedCompositeFieldContainer[Model]
        memory: MemoryBudget
        def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., memory: _Optional[_Union[MemoryBudget, _Mapping]] = ...) -> None: ...
    class Heartbeat(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_NAME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    snapshot: WatchModelsResponse.Snapshot
    changed: Model
    removed_name: str
    heartbeat: WatchModelsResponse.Heartbeat
    def __init__(self, sequence: _Optional[int] = ..., snapshot: _Optional[_Union[WatchModelsResponse.Snapshot, _Mapping]] = ..., changed: _Optional[_Union[Model, _Mapping]] = ..., removed_name: _Optional[str] = ..., heartbeat: _Optional[_Union[WatchModelsResponse.Heartbeat, _Mapping]] = ...) -> None: ...
