"""Words about models: what may be loaded, what is loaded, and the protocols between the rooms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from .errors import InferdError


class ModelState(StrEnum):
    """Residency of a model (docs/semantics.md §2)."""

    UNLOADED = "unloaded"
    QUEUED = "queued"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    PREEMPTING = "preempting"
    UNLOADING = "unloading"
    FAILED = "failed"


class Capability(StrEnum):
    """What a model can do."""

    GENERATE = "generate"
    CHAT = "chat"
    EMBED = "embed"
    RERANK = "rerank"
    VISION = "vision"
    TOOLS = "tools"


class EngineKind(StrEnum):
    """Which engine opens a model (app/openers.py has the table)."""

    LANGUAGE = "language"
    VISION = "vision"
    EMBEDDING = "embedding"
    RERANKING = "reranking"


class Strategy(StrEnum):
    """Contention strategies: what to do when idle models are not enough (docs/semantics.md §4)."""

    FAIL = "fail"
    WAIT = "wait"
    PREEMPT = "preempt"
    WAIT_THEN_FAIL = "wait_then_fail"
    WAIT_THEN_PREEMPT = "wait_then_preempt"


class UnloadMode(StrEnum):
    """What to do with the requests of a model that is unloaded."""

    DRAIN = "drain"
    IF_IDLE = "if_idle"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class ContentionPolicy:
    """A strategy with its times, in seconds."""

    strategy: Strategy
    wait_timeout_seconds: float = 30.0
    preempt_after_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Defaults of one model, already merged with the server's."""

    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a model is opened and driven; everything the engine and the scheduler need, nothing of the registry's.

    Attributes:
        kind: which engine opens it.
        adapter_path: folder of a LoRA adapter, in mlx_lm's form, laid over the weights.
        draft_path: folder of a model that drafts tokens for it (speculative decoding).
        kv_bits: of each key and value in the cache; 0: as the model computes them.
        kv_group_size: how many of them share a scale.
        prefill_step_size: most tokens of one piece of prefill; its size while nothing decodes.
        target_gap_seconds: between two tokens of a running stream while prompts are prefilled; None: the engine's.
    """

    name: str
    path: Path
    kind: EngineKind = EngineKind.LANGUAGE
    adapter_path: Path | None = None
    draft_path: Path | None = None
    continuous_batching: bool = True
    max_batch_size: int = 64
    prefill_step_size: int = 512
    target_gap_seconds: float | None = None
    stream_interval: int = 1
    trust_remote_code: bool = False
    step_timeout_seconds: float = 60.0
    prefix_cache_nbytes: int = 0
    kv_bits: int = 0
    kv_group_size: int = 64

    @property
    def folders(self) -> tuple[Path, Path | None, Path | None]:
        """Where its weights lie: the model's, the adapter's, the draft model's."""
        return self.path, self.adapter_path, self.draft_path


@dataclass(frozen=True, slots=True)
class EmbedderFacts:
    """What an embedder's folder says about it.

    Attributes:
        width: of its vectors.
        max_tokens: of one text, the tokenizer's special tokens included.
        normalizes: whether its vectors have length 1 unless asked otherwise.
        prompts: texts to put before a text, by name (query, document).
        default_prompt: the name of the one that is used where none is asked for; "" for none.
    """

    width: int
    max_tokens: int
    normalizes: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""


@dataclass(frozen=True, slots=True)
class RerankerFacts:
    """What a reranker's folder says about it.

    Attributes:
        max_tokens: of a query and a document together, special tokens included.
        applies_sigmoid: whether a score is the sigmoid of the model's number; else it is that number.
    """

    max_tokens: int
    applies_sigmoid: bool = True


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One configured model: what may be loaded and how large it will be.

    Attributes:
        is_estimate_stated: a person stated estimated_bytes; else it is the size of the files, and follows it.
        tool_call_parser: how tool calls are found in its output (text/families.py): a parser's name, none or, until
            its files were looked at, auto.
        reasoning_parser: the same for its reasoning.
        embedder: of a model that makes vectors; None for others.
        reranker: of a model that scores documents; None for others.
    """

    name: str
    engine: EngineSettings
    aliases: tuple[str, ...] = ()
    revision: str = ""
    architecture: str = ""
    capabilities: frozenset[Capability] = frozenset()
    context_length: int = 0
    vocabulary_size: int = 0
    quantization_bits: int = 0
    estimated_bytes: int = 0
    is_estimate_stated: bool = False
    pinned: bool = False
    preload: bool = False
    idle_unload_seconds: float = 0.0
    max_queue: int = 256
    tool_call_parser: str = "none"
    reasoning_parser: str = "none"
    embedder: EmbedderFacts | None = None
    reranker: RerankerFacts | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)

    @property
    def makes_text(self) -> bool:
        """Whether it answers prompts; else it reads texts alone."""
        return self.embedder is None and self.reranker is None


@dataclass(frozen=True, slots=True)
class ResidentStatistics:
    """A snapshot of one loaded model's work.

    Attributes:
        cache_nbytes: KV and prefix caches held now, in bytes.
        step_age_seconds: since its engine, which has work, last ended a step; 0 without work.
    """

    running: int = 0
    waiting: int = 0
    cache_nbytes: int = 0
    step_age_seconds: float = 0.0


class Resident(Protocol):
    """What the registry holds for a loaded model: opaque to it, as a connection is to a pool.

    All methods are called on the event loop and return at once, except `close`.
    """

    @property
    def weights_nbytes(self) -> int:
        """Parameter bytes, measured after the load."""

    def statistics(self) -> ResidentStatistics:
        """A frozen snapshot."""

    def interrupt(self, by_model: str) -> None:
        """Hand every request back for another model's sake: each stream ends with `Interrupted`, and so does
        each later submit, until `resume`. Idempotent."""

    def resume(self) -> None:
        """Admit again after `interrupt` (the rival went away)."""

    def abort(self, error: InferdError) -> None:
        """End every request, queued or running, with `error` (forced unload, shutdown)."""

    async def close(self) -> None:
        """End the engine: returns once its worker has joined, references are dropped and the buffer cache is cleared.
        Called once, without leases. Not cancellable in effect: the end goes on if the caller leaves."""


class LoadAbandoned(Exception):
    """The load was given up at the registry's wish; its memory is free again."""


class Interrupted(Exception):
    """A request was handed back for another model's sake; what it emitted so far was delivered in full before."""

    def __init__(self, by_model: str) -> None:
        super().__init__(f"interrupted for {by_model}")
        self.by_model = by_model


class Loading(Protocol):
    """A load under way, given to `Loader.load`: how it tells its progress and learns that it is not wanted."""

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        """Bytes of weights read so far; callable from any thread."""

    @property
    def abandoned(self) -> bool:
        """Whether to give up at the next chance by raising LoadAbandoned; readable from any thread."""


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """A model's files just before a load.

    Attributes:
        entry: the model's entry with what its files say now (they may have been replaced since it was configured).
        weights_nbytes: of its weight files; 0 if they can't be measured.
    """

    entry: ModelEntry
    weights_nbytes: int = 0


class Loader(Protocol):
    """Opens models. `app` hands the registry the real one (app/loader.py)."""

    async def check(self, entry: ModelEntry) -> CheckedFiles:
        """What can be checked cheaply, before anything is evicted: files, config, architecture, index against sizes.

        Raises:
            InferdError: MODEL_CORRUPT, MODEL_UNSUPPORTED or MODEL_LOAD_FAILED.
        """

    async def load(
        self, entry: ModelEntry, generation: int, loading: Loading, on_death: Callable[[InferdError], None]
    ) -> Resident:
        """Load and warm up. When it raises, the memory is proven free again.

        Args:
            on_death: called once on the event loop if the engine dies after the load.

        Raises:
            LoadAbandoned: `loading.abandoned` was seen.
            InferdError: why the load failed.
        """


Clock = Callable[[], float]
"""Seconds of one monotonic clock."""
