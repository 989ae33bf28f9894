"""The registry's snapshots on the wire."""

from inferd.v1 import model_service_pb2 as pb
from inferd_server.registry.registry import MemorySnapshot, ModelSnapshot

from .enums import CAPABILITY_VALUES, MODEL_STATE_VALUES
from .times import to_timestamp


def from_model(model: ModelSnapshot) -> pb.Model:
    """One model, residency and all."""
    entry = model.entry
    return pb.Model(
        name=entry.name,
        aliases=entry.aliases,
        revision=entry.revision,
        architecture=entry.architecture,
        capabilities=sorted(CAPABILITY_VALUES[capability] for capability in entry.capabilities),
        context_length=entry.context_length,
        quantization_bits=entry.quantization_bits,
        state=MODEL_STATE_VALUES[model.state],
        state_time=to_timestamp(model.state_time),
        load_progress=model.load_progress,
        last_error=_last_error(model),
        load_generation=model.generation,
        memory=pb.ModelMemory(
            estimated_bytes=model.estimated_nbytes,
            charged_bytes=model.charged_nbytes,
            weights_bytes=model.weights_nbytes,
            cache_bytes=model.cache_nbytes,
        ),
        pinned=model.pinned,
        running_requests=model.running,
        waiting_requests=model.waiting,
        last_used_time=to_timestamp(model.last_used_time) if model.last_used_time else None,
        isolation=pb.MODEL_ISOLATION_THREAD,
    )


def _last_error(model: ModelSnapshot) -> pb.ModelError | None:
    if model.last_error is None:
        return None
    reason, message, unix_seconds = model.last_error
    return pb.ModelError(reason=reason, message=message, time=to_timestamp(unix_seconds))


def from_memory(memory: MemorySnapshot) -> pb.MemoryBudget:
    """The budget."""
    return pb.MemoryBudget(
        limit_bytes=memory.limit_nbytes,
        used_bytes=memory.used_nbytes,
        reserved_bytes=memory.reserved_nbytes,
        ceiling_bytes=memory.ceiling_nbytes,
        active_bytes=memory.active_nbytes,
    )
