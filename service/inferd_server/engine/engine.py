"""The engine's protocol: mlx-lm's verbs over one loaded model. Everything is called on the one thread that owns it."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from inferd_server.core.generation import DecodeRequest, Token

from .memory import WorkFootprint

RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
PieceT = TypeVar("PieceT")


@dataclass(frozen=True, slots=True)
class StepResultOf(Generic[PieceT]):
    """What one step brought. `tokens` holds at most one token for each running sequence, in no promised
    order; or several of the only one, in theirs (speculative decoding). `media_nbytes`: of the request whose media it
    looked at, the share of this step."""

    tokens: list[PieceT]
    prefill_tokens: int = 0
    media_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class StepResult(StepResultOf[Token]):
    """Of an engine that makes tokens."""


class EngineOf(Protocol[RequestT_contra, PieceT]):
    """One loaded model, driven by its owning thread. What makes tokens is an `Engine`; an embedder makes vectors.

    A failing sequence fails alone (Token.failure). An exception from `step` means the whole generator is suspect: the
    engine has discarded it and every sequence it held is lost; the engine can be used again unless `is_broken`.
    """

    @property
    def weights_nbytes(self) -> int:
        """Parameter bytes."""

    @property
    def cache_nbytes(self) -> int:
        """KV and prefix caches held now, bytes."""

    @property
    def footprint(self) -> WorkFootprint:
        """What its work takes beside the weights, by a formula; fixed."""

    @property
    def max_rows(self) -> int:
        """Most sequences that may run together: max_batch_size, or 1 for a model that can't be batched rightly."""

    @property
    def is_broken(self) -> bool:
        """Whether nothing more can be run (a device error, a failed rebuild)."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""

    def insert(self, request: RequestT_contra) -> int:
        """Take a sequence; its prefill starts at the next step. Returns its uid, unique in this engine."""

    def step(self) -> StepResultOf[PieceT]:
        """Bring one decode step's tokens, or launch a bounded piece of prefill and the next decode step behind it."""

    def remove(self, uid: int) -> None:
        """Drop a sequence at any stage; others are untouched. An unknown uid is no error (it may just have ended)."""

    def bound_prefix_cache(self, nbytes: int) -> None:
        """Let the prefix cache hold at most so many bytes from now on; what is beyond is dropped at once."""

    def close(self) -> None:
        """Drop the model and caches and clear the buffer cache; the last call on the owning thread."""


Engine = EngineOf[DecodeRequest, Token]
