"""The contract's enums and the words they stand for. Built by name: a word without its value fails at import."""

from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2
from inferd_server.core.generation import FinishReason, Role, WaitState
from inferd_server.core.model import Capability, ModelState, Strategy

Word = TypeVar("Word", bound=StrEnum)


# Any: the stubs give each enum an int class of its own, which nobody can name generically.
def _values(wire: EnumTypeWrapper, prefix: str, words: type[Word]) -> MappingProxyType[Word, Any]:
    return MappingProxyType({word: wire.Value(f"{prefix}_{word.name}") for word in words})


def _words(values: MappingProxyType[Word, Any]) -> MappingProxyType[int, Word]:
    return MappingProxyType({value: word for word, value in values.items()})


STRATEGY_VALUES = _values(generation_pb2.ContentionStrategy, "CONTENTION_STRATEGY", Strategy)
STRATEGIES = _words(STRATEGY_VALUES)
ROLE_VALUES = _values(generation_pb2.Role, "ROLE", Role)
ROLES = _words(ROLE_VALUES)
FINISH_REASON_VALUES = _values(generation_pb2.FinishReason, "FINISH_REASON", FinishReason)
WAIT_STATE_VALUES = _values(inference_service_pb2.WaitState, "WAIT_STATE", WaitState)
MODEL_STATE_VALUES = _values(model_service_pb2.ModelState, "MODEL_STATE", ModelState)
MODEL_STATES = _words(MODEL_STATE_VALUES)
CAPABILITY_VALUES = _values(model_service_pb2.ModelCapability, "MODEL_CAPABILITY", Capability)
