"""The keys of a configuration file, their types, defaults and meanings: the one place that knows them.

Everything else is generated from here: messages about bad values, flags, environment variables, `inferd config init`.
Types are strict (no text or true/false for a number); unknown keys are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from inferd_server.core.media import MAX_PIXELS, MediaLimits
from inferd_server.core.model import Strategy
from inferd_server.text.families import REASONING_PARSERS, TOOL_CALL_PARSERS


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a value may be, for people: completes the sentence "must be …"."""

    text: str


@dataclass(frozen=True, slots=True)
class Later:
    """Marks a key whose substance is not built yet: only its default and `harmless` values are accepted."""

    reason: str
    harmless: tuple[object, ...] = ()


def _one_of(words: Sequence[str]) -> StringConstraints:
    """Exactly one of these words of letters, digits and underscores."""
    return StringConstraints(pattern=rf"^({'|'.join(words)})\z")


Name = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._:/-]{1,128}\z"),
    Allowed("1 to 128 of the characters A-Z a-z 0-9 . _ : / -"),
]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096), Allowed("text (in quotes where in doubt)")]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=128), Allowed("text of 1 to 128 characters")]
Seconds = Annotated[float, Field(ge=0, le=31_536_000), Allowed("a number of seconds from 0 to 31536000 (a year)")]
PositiveSeconds = Annotated[
    float, Field(gt=0, le=31_536_000), Allowed("a number of seconds above 0, at most 31536000 (a year)")
]
Milliseconds = Annotated[float, Field(ge=0, le=10_000), Allowed("a number of milliseconds from 0 to 10000")]
GapMilliseconds = Annotated[float, Field(gt=0, le=10_000), Allowed("a number of milliseconds above 0, at most 10000")]
Gibibytes = Annotated[float, Field(gt=0, le=1_048_576), Allowed("a number of GiB above 0, at most 1048576")]
Mebibytes = Annotated[int, Field(ge=0, le=1_073_741_824), Allowed("a whole number of MiB from 0 to 1073741824")]
MessageMebibytes = Annotated[int, Field(ge=1, le=2047), Allowed("a whole number of MiB from 1 to 2047")]
Images = Annotated[int, Field(ge=0, le=1024), Allowed("a whole number from 0 (none) to 1024")]
Pixels = Annotated[int, Field(ge=1, le=MAX_PIXELS), Allowed(f"a whole number of pixels from 1 to {MAX_PIXELS}")]
Count = Annotated[int, Field(ge=1, le=1_000_000), Allowed("a whole number from 1 to 1000000")]
BatchSize = Annotated[int, Field(ge=1, le=4096), Allowed("a whole number from 1 to 4096")]
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1), Allowed("a whole number of tokens from 1 to 2147483647")]
PerMinute = Annotated[int, Field(ge=1, le=10**12), Allowed("a whole number from 1 to 1000000000000")]
Temperature = Annotated[float, Field(ge=0, le=100), Allowed("a number from 0 (greedy) to 100")]
TopP = Annotated[float, Field(gt=0, le=1), Allowed("a number above 0, at most 1")]
TopK = Annotated[int, Field(ge=0, le=2**31 - 1), Allowed("a whole number from 0 (off) to 2147483647")]
Share = Annotated[float, Field(ge=0, le=1), Allowed("a number from 0 to 1")]
PositiveShare = Annotated[float, Field(gt=0, le=1), Allowed("a number above 0, at most 1")]
Penalty = Annotated[float, Field(gt=0, le=100), Allowed("a number above 0, at most 100 (1 is off)")]
CacheBits = Annotated[Literal[4, 8], Allowed("4 or 8")]
CacheGroup = Annotated[Literal[32, 64, 128], Allowed("32, 64 or 128")]
# Its members come from YAML as text, which strictness would refuse.
StrategyName = Annotated[Strategy, Field(strict=False)]
PreemptedRequests = Literal["resume", "abort"]
Isolation = Literal["thread", "process"]
ToolCallParser = Annotated[str, _one_of(TOOL_CALL_PARSERS), Allowed("one of " + ", ".join(TOOL_CALL_PARSERS))]
ReasoningParser = Annotated[str, _one_of(REASONING_PARSERS), Allowed("one of " + ", ".join(REASONING_PARSERS))]
SocketMode = Annotated[
    str, StringConstraints(pattern=r"^0?[0-7]{3}\z"), Allowed('octal digits in quotes, such as "0600" or "0660"')
]
LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _key(default: Any, meaning: str) -> Any:
    """A key with its default and its meaning."""
    return Field(default, description=meaning)


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, validate_default=False)


class Defaults(Section):
    """What holds for every model that does not say otherwise."""

    temperature: Temperature = _key(0.7, "randomness of sampling")
    top_p: TopP = _key(1.0, "nucleus sampling: share of probability to draw from")
    top_k: TopK = _key(0, "draw from so many of the likeliest tokens")
    min_p: Share = _key(0.0, "drop tokens less likely than this share of the likeliest")
    repetition_penalty: Penalty = _key(1.0, "divides the logits of tokens seen before")
    max_tokens: Tokens = _key(512, "most tokens of an answer")
    continuous_batching: bool = _key(True, "decode several requests together; false: one at a time")
    max_batch_size: BatchSize = _key(64, "requests decoding together")
    prefill_step_size: Tokens = _key(512, "most prompt tokens read at once; fewer while answers stream")
    target_gap_ms: GapMilliseconds | None = _key(
        None, "wished between two tokens of an answer while prompts are read; null: 100, or two decode steps if more"
    )
    stream_interval: Count = _key(1, "least decode steps per message of a stream")
    gpu_memory_utilization: PositiveShare = _key(
        0.8, "share of the device's recommended working set that may be allocated"
    )


class ServerSection(Section):
    """The process: where it listens, how it stops, what it limits."""

    listen: Text = _key("127.0.0.1:50051", "HOST:PORT (port 0: any free one) or unix:/path")
    socket_mode: SocketMode = _key("0600", "who may connect to a unix: socket: its file's mode")
    probe_listen: Text | None = _key(
        None, "HOST:PORT that answers health checks alone, in plaintext and to anyone; null: none"
    )
    prevent_sleep: bool = _key(False, "keep the system from falling asleep while it serves; macOS alone")
    drain_delay_s: Seconds = _key(3.0, "after SIGTERM: go on serving so long, until load balancers have noticed")
    drain_timeout_s: Seconds = _key(30.0, "then: let running requests finish for so long")
    max_message_mib: MessageMebibytes = _key(64, "largest message, both ways")
    max_images: Images = _key(16, "images of a request")
    max_image_mib: MessageMebibytes = _key(20, "largest image, as it is sent")
    max_image_pixels: Pixels = _key(16_777_216, "width times height of an image")
    max_request_pixels: Pixels = _key(33_554_432, "pixels of all images of a request")
    max_queue: Count = _key(1024, "waiting requests, all models together")
    coalesce_ms: Milliseconds = _key(10.0, "tokens of so many milliseconds share a message; 0: no added delay")
    request_timeout_s: PositiveSeconds = _key(600.0, "longest run of a request, counted from admission")
    reflection: bool = _key(True, "tell tools which services and messages there are")
    defaults: Defaults = Field(default_factory=Defaults, description="what holds for every model")

    @property
    def max_message_nbytes(self) -> int:
        """Largest message, bytes."""
        return self.max_message_mib * 2**20

    @property
    def media_limits(self) -> MediaLimits:
        """What the media of a request may amount to."""
        return MediaLimits(
            max_images=self.max_images,
            max_image_nbytes=self.max_image_mib * 2**20,
            max_image_pixels=self.max_image_pixels,
            max_request_pixels=self.max_request_pixels,
        )


class ContentionSection(Section):
    """What a request does when its model does not fit beside the models in use."""

    strategy: StrategyName = _key(Strategy.WAIT_THEN_FAIL, "what to do when idle models are not enough")
    wait_timeout_s: PositiveSeconds = _key(30.0, "longest wait of wait_then_fail and wait_then_preempt")
    preempt_after_s: Seconds = _key(15.0, "wait_then_preempt: interrupt others after so long; below wait_timeout_s")


class ManagerSection(Section):
    """Which models are in memory."""

    memory_budget_gb: Gibibytes = Field(description="GiB of model weights, all resident models together")
    contention_policy: ContentionSection = Field(
        default_factory=ContentionSection, description="what a request does when its model does not fit"
    )
    preempted_requests: PreemptedRequests = _key("resume", "what becomes of interrupted requests")
    min_residency_s: Seconds = _key(2.0, "a model just loaded is not evicted before its waiters had so long")
    drain_busy_after_s: Seconds = _key(5.0, "fairness: drain busy rivals once the first in line waited so long; 0: off")
    idle_unload_s: Seconds = _key(0.0, "unload a model idle for so long; 0: never")
    load_timeout_s: PositiveSeconds = _key(600.0, "longest load")
    step_timeout_s: PositiveSeconds = _key(60.0, "no progress for so long: the model is stuck and fails")
    cache_memory_mb: Mebibytes = _key(2048, "most MiB of prefix cache, per model; 0: none")
    request_overrides: list[StrategyName] = Field(
        default_factory=lambda: [Strategy.FAIL, Strategy.WAIT, Strategy.WAIT_THEN_FAIL],
        max_length=16,
        description="strategies that a request may ask for by itself",
    )


class ModelDefaults(Section):
    """Sampling of one model, where a request leaves it open."""

    temperature: Temperature | None = _key(None, "randomness of sampling")
    top_p: TopP | None = _key(None, "nucleus sampling: share of probability to draw from")
    top_k: TopK | None = _key(None, "draw from so many of the likeliest tokens")
    min_p: Share | None = _key(None, "drop tokens less likely than this share of the likeliest")
    repetition_penalty: Penalty | None = _key(None, "divides the logits of tokens seen before")
    max_tokens: Tokens | None = _key(None, "most tokens of an answer")


_NO_SPECPREFILL = Later("this version has no speculative prefill")


class ModelSection(Section):
    """One model. null stands for the default of the section above it."""

    name: Name = Field(description="what requests call it")
    path: Text | None = _key(None, "its folder; relative to this file")
    source: Text | None = _key(None, "or: a hub id")
    model: Text | None = _key(None, "or: either of the two")
    aliases: list[Name] = Field(default_factory=list, max_length=64, description="other names for it")
    revision: ShortText | None = _key(None, "shown to clients; null: a digest of its weight index")
    preload: bool = _key(False, "load it at start; the server is ready when preloads are done")
    pinned: bool = _key(False, "never evict it")
    continuous_batching: bool | None = _key(None, "decode several requests together; null: server.defaults")
    max_batch_size: BatchSize | None = _key(None, "requests decoding together; null: server.defaults")
    prefill_step_size: Tokens | None = _key(None, "most prompt tokens read at once; null: server.defaults")
    target_gap_ms: GapMilliseconds | None = _key(
        None, "wished between two tokens of an answer while prompts are read; null: server.defaults"
    )
    stream_interval: Count | None = _key(None, "least decode steps per message; null: server.defaults")
    gpu_memory_utilization: PositiveShare | None = _key(
        None, "share of the device's working set that may be allocated; null: server.defaults"
    )
    estimated_memory_gb: Gibibytes | None = _key(None, "GiB of its weights; null: measured from its files")
    max_queue: Count = _key(256, "requests waiting for this model")
    idle_unload_s: Seconds | None = _key(None, "unload it when idle for so long; 0: never; null: the manager's")
    trust_remote_code: bool = _key(False, "run Python code that lies in its folder")
    defaults: ModelDefaults = Field(default_factory=ModelDefaults, description="sampling, where a request says nothing")
    mllm: bool = _key(False, "serve it as a vision model, whatever its files say; such are found by themselves")
    isolation: Annotated[Isolation, Later("this version runs every model on a thread")] = _key(
        "thread", "thread or process"
    )
    adapter_path: Text | None = _key(None, "folder of a LoRA adapter (mlx_lm's form); relative to this file")
    draft_model: Text | None = _key(
        None, "folder of a small model of the same vocabulary that drafts tokens while one request runs alone"
    )
    kv_bits: CacheBits | None = _key(None, "quantize the KV cache to so many bits; then one request decodes at a time")
    kv_group_size: CacheGroup = _key(64, "keys or values of a quantized KV cache that share a scale")
    tool_call_parser: ToolCallParser = _key("auto", "how tool calls are found in its output; auto: by its template")
    reasoning_parser: ReasoningParser = _key("auto", "how its reasoning is told from its answer; auto: by its tokens")
    enable_mtp: Annotated[bool, Later("this version has no multi-token prediction")] = _key(
        False, "multi-token prediction"
    )
    specprefill: Annotated[bool, _NO_SPECPREFILL] = _key(False, "speculative prefill")
    specprefill_threshold: Annotated[Tokens | None, _NO_SPECPREFILL] = _key(None, "speculative prefill from so many")
    specprefill_keep_pct: Annotated[Share | None, _NO_SPECPREFILL] = _key(None, "speculative prefill: share kept")
    specprefill_draft_model: Annotated[Text | None, _NO_SPECPREFILL] = _key(None, "speculative prefill: model")


class LoggingSection(Section):
    """Log lines, on stderr."""

    format: LogFormat = _key("console", "console for people, json for machines")
    level: LogLevel = _key("info", "least severity that is logged")


class MetricsSection(Section):
    """Figures for Prometheus, over HTTP."""

    listen: Text | None = _key(None, "HOST:PORT (port 0: any free one) that answers GET /metrics; null: none")


class TracingSection(Section):
    """Traces for an OpenTelemetry collector. Headers, certificates and resource come from its own OTEL_… variables."""

    endpoint: Text | None = _key(None, "HOST:PORT or URL of a collector that takes OTLP over gRPC; null: no traces")
    sample_ratio: Share = _key(1.0, "share of requests traced, where the caller has not decided")
    insecure: bool = _key(False, "reach the collector without TLS (an http: URL says so itself)")
    record_prompts: bool = _key(False, "put the texts of prompts into traces")


class TlsSection(Section):
    """Encryption, and who may connect. Files in PEM form, relative to this file, read again when they change."""

    certificate: Text | None = _key(
        None, "the server's certificate, and those that lead to its authority; null: no TLS"
    )
    key: Text | None = _key(None, "the certificate's private key")
    client_ca: Text | None = _key(None, "clients must present a certificate that one of these authorities issued")


class AuthSection(Section):
    """Who may ask."""

    keys_file: Text | None = _key(None, "YAML file of API keys, relative to this file; null: nobody needs a key")
    share_prefix_cache: bool = _key(False, "let requests of different keys reuse each other's prompt prefixes")
    public_model_health: bool = _key(False, "tell the health of models, and so their names, without a key")


class LimitsSection(Section):
    """What all callers together may use, with or without keys. Each key may have the same limits of its own."""

    max_prompt_tokens: Tokens | None = _key(None, "longest prompt; null: the model's context")
    max_output_tokens: Tokens | None = _key(None, "most tokens of an answer; null: the model's context")
    max_concurrent: Count | None = _key(None, "inference RPCs in flight; null: no bound")
    requests_per_minute: PerMinute | None = _key(None, "inference RPCs taken per minute; null: no bound")
    tokens_per_minute: PerMinute | None = _key(None, "tokens of prompts and answers per minute; null: no bound")


SECTIONS: dict[str, type[Section]] = {
    "server": ServerSection,
    "manager": ManagerSection,
    "models": ModelSection,
    "logging": LoggingSection,
    "metrics": MetricsSection,
    "tracing": TracingSection,
    "tls": TlsSection,
    "auth": AuthSection,
    "limits": LimitsSection,
}
MAX_MODELS = 4096
