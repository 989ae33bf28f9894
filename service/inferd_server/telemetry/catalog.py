"""Every metric that inferd serves: its name, kind, labels and meaning. docs/metrics.md is made from this table.

Names follow the OpenTelemetry GenAI conventions where these have one (gen_ai_server_*), in Prometheus' spelling:
base units, `_total` for counters. Labels take configured models, known methods and words of enumerations alone.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a metric moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A histogram has the upper bounds of its buckets, without +Inf."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
REQUEST_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
LOAD_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_MODEL = ("model",)

# --- what happened: told as it happens

REQUESTS = Metric(
    "inferd_requests_total",
    Kind.COUNTER,
    "RPCs that ended, watches and probes included; reason is empty where the code says all",
    ("method", "model", "code", "reason"),
)
REQUEST_DURATION = Metric(
    "gen_ai_server_request_duration_seconds",
    Kind.HISTOGRAM,
    "requests for a model's work, Embed and Rerank too, from their arrival to their end",
    ("method", "model", "code"),
    REQUEST_BUCKETS,
)
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai_server_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    "from a request's arrival to its first token, queue and load included",
    _MODEL,
    REQUEST_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai_server_time_per_output_token_seconds",
    Kind.HISTOGRAM,
    "per request of at least two tokens: its mean time per token after the first, interruptions included",
    _MODEL,
    STEP_BUCKETS,
)
INTER_TOKEN = Metric(
    "inferd_inter_token_seconds",
    Kind.HISTOGRAM,
    "between two arrivals of tokens at one stream; tokens that arrive together (coalesce_ms) count once",
    _MODEL,
    STEP_BUCKETS,
)
QUEUE = Metric(
    "inferd_request_queue_seconds",
    Kind.HISTOGRAM,
    "requests that got a row: time in queues before it, without their model's load",
    _MODEL,
    REQUEST_BUCKETS,
)
LOAD_WAIT = Metric(
    "inferd_request_load_seconds",
    Kind.HISTOGRAM,
    "requests that waited for a load of their model and got a row: time in that load",
    _MODEL,
    LOAD_BUCKETS,
)
PROMPT_TOKENS = Metric("inferd_prompt_tokens_total", Kind.COUNTER, "prompt tokens of ended requests", _MODEL)
CACHED_PROMPT_TOKENS = Metric(
    "inferd_cached_prompt_tokens_total", Kind.COUNTER, "those of them that a prefix cache had", _MODEL
)
COMPLETION_TOKENS = Metric("inferd_completion_tokens_total", Kind.COUNTER, "tokens generated", _MODEL)
REQUEST_PREEMPTIONS = Metric(
    "inferd_request_preemptions_total", Kind.COUNTER, "running requests that were interrupted for another model", _MODEL
)
REQUEST_RESUMES = Metric("inferd_request_resumes_total", Kind.COUNTER, "interrupted requests that went on", _MODEL)
MODEL_LOAD = Metric(
    "inferd_model_load_seconds",
    Kind.HISTOGRAM,
    "loads that ended well, warm-up included",
    _MODEL,
    LOAD_BUCKETS,
)
STEP = Metric("inferd_engine_step_seconds", Kind.HISTOGRAM, "steps of an engine", _MODEL, STEP_BUCKETS)
BATCH = Metric("inferd_engine_batch_size", Kind.HISTOGRAM, "sequences in an engine, per step", _MODEL, BATCH_BUCKETS)
LOOP_LAG = Metric(
    "inferd_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "how late the event loop ran a timer, looked at twice a second",
    (),
    STEP_BUCKETS,
)

# --- what is: read from snapshots when Prometheus asks

BUILD = Metric("inferd_build_info", Kind.GAUGE, "always 1", ("version", "mlx_version", "device"))
READY = Metric("inferd_ready", Kind.GAUGE, "1 while the server is ready: preloads done, not about to drain")
RUNNING = Metric("inferd_requests_running", Kind.GAUGE, "requests that have a row: the batch now", _MODEL)
WAITING = Metric("inferd_requests_waiting", Kind.GAUGE, "requests that wait for their model or for a row", _MODEL)
STATE = Metric("inferd_model_state", Kind.GAUGE, "1 for the state that a model is in, 0 for others", ("model", "state"))
CHARGED = Metric("inferd_model_charged_bytes", Kind.GAUGE, "bytes of the budget that a model takes", _MODEL)
CACHE = Metric("inferd_model_cache_bytes", Kind.GAUGE, "KV and prefix caches of a model", _MODEL)
STEP_AGE = Metric(
    "inferd_engine_last_step_age_seconds",
    Kind.GAUGE,
    "since an engine with work last ended a step; 0 without work",
    _MODEL,
)
BUDGET = Metric("inferd_memory_budget_bytes", Kind.GAUGE, "the budget of weights")
USED = Metric("inferd_memory_charged_bytes", Kind.GAUGE, "bytes of the budget that are taken, reserved ones included")
RESERVED = Metric("inferd_memory_reserved_bytes", Kind.GAUGE, "bytes of the budget that loads under way have reserved")
CEILING = Metric("inferd_memory_ceiling_bytes", Kind.GAUGE, "the device's allocation ceiling; 0: none")
ACTIVE = Metric("inferd_memory_active_bytes", Kind.GAUGE, "bytes that MLX has allocated and uses")
PROCESS = Metric(
    "inferd_memory_process_bytes",
    Kind.GAUGE,
    "memory of the process as the system counts it: the physical footprint on macOS, resident pages on Linux",
)
CERTIFICATE_END = Metric(
    "inferd_tls_certificate_end_timestamp_seconds",
    Kind.GAUGE,
    "when the certificate in use expires, seconds since 1970; 0: no TLS",
)
LEASES = Metric("inferd_leases", Kind.GAUGE, "requests that hold their model in memory")
LOAD_FAILURES = Metric("inferd_model_load_failures_total", Kind.COUNTER, "checks and loads that failed")
ABANDONED_LOADS = Metric("inferd_model_loads_abandoned_total", Kind.COUNTER, "loads given up before their end")
DEATHS = Metric("inferd_engine_deaths_total", Kind.COUNTER, "engines that died or were stuck while they served")
EVICTIONS = Metric("inferd_model_evictions_total", Kind.COUNTER, "idle models unloaded to make room")
PREEMPTIONS = Metric("inferd_model_preemptions_total", Kind.COUNTER, "busy models interrupted to make room")
DRAINS = Metric("inferd_model_drains_total", Kind.COUNTER, "busy models drained to make room")
IDLE_UNLOADS = Metric("inferd_model_idle_unloads_total", Kind.COUNTER, "models unloaded because nobody used them")
LOST_LOG_LINES = Metric(
    "inferd_log_lines_lost_total",
    Kind.COUNTER,
    "log lines that could not be written: nobody read them, or a disk was full",
)
REFUSALS = Metric("inferd_refusals_total", Kind.COUNTER, "requests and loads that the registry refused")

TOLD: tuple[Metric, ...] = (
    REQUESTS,
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    INTER_TOKEN,
    QUEUE,
    LOAD_WAIT,
    PROMPT_TOKENS,
    CACHED_PROMPT_TOKENS,
    COMPLETION_TOKENS,
    REQUEST_PREEMPTIONS,
    REQUEST_RESUMES,
    MODEL_LOAD,
    STEP,
    BATCH,
    LOOP_LAG,
)
READ: tuple[Metric, ...] = (
    BUILD,
    READY,
    RUNNING,
    WAITING,
    STATE,
    CHARGED,
    CACHE,
    STEP_AGE,
    BUDGET,
    USED,
    RESERVED,
    CEILING,
    ACTIVE,
    PROCESS,
    CERTIFICATE_END,
    LEASES,
    LOAD_FAILURES,
    ABANDONED_LOADS,
    DEATHS,
    EVICTIONS,
    PREEMPTIONS,
    DRAINS,
    IDLE_UNLOADS,
    REFUSALS,
    LOST_LOG_LINES,
)
METRICS = TOLD + READ


def samples(metric: Metric) -> tuple[str, ...]:
    """The names that queries use: a histogram has three."""
    if metric.kind is Kind.HISTOGRAM:
        return tuple(metric.name + end for end in ("_bucket", "_count", "_sum"))
    return (metric.name,)


def reference() -> str:
    """The table as Markdown, for docs/metrics.md."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield "| metric | kind | labels | what it is |"
    yield "| --- | --- | --- | --- |"
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
