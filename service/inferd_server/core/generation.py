"""Words about generation: a request as the service understands it, and what comes back."""

from dataclasses import dataclass, field
from enum import StrEnum

from .constraints import Constraint, Grammar
from .media import Blob, MediaLimits, PictureFeatures
from .model import ContentionPolicy


class FinishReason(StrEnum):
    """Why a generation ended normally."""

    EOS = "eos"
    STOP = "stop"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    TOOL_CALLS = "tool_calls"


class WaitState(StrEnum):
    """What a waiting request waits for."""

    QUEUED = "queued"
    EVICTING = "evicting"
    LOADING = "loading"
    PREEMPTED = "preempted"


class Role(StrEnum):
    """Who said a message; the values are what chat templates expect."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool by the model; the arguments are JSON text."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool on offer; `parameters_json` is a JSON Schema as text."""

    name: str
    description: str
    parameters_json: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `parts` are text and media in their order."""

    role: Role
    parts: tuple[str | Blob, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    @property
    def text_parts(self) -> tuple[str, ...]:
        """The text among its parts, in order."""
        return tuple(part for part in self.parts if isinstance(part, str))

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The media among its parts, in order."""
        return tuple(part for part in self.parts if isinstance(part, Blob))


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """Text without a template."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Turns for the model's own template; `template_variables` go to it as they are. `media_limits`: what its caller's
    media may amount to."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_variables: dict[str, object] = field(default_factory=dict)
    media_limits: MediaLimits = field(default_factory=MediaLimits)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Its media, in the order in which they are shown."""
        return tuple(blob for message in self.messages for blob in message.blobs)

    @property
    def media_nbytes(self) -> int:
        """Bytes of its media."""
        return sum(len(blob.data) for blob in self.blobs)


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids."""

    ids: tuple[int, ...]


Prompt = RawPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class SamplingChoices:
    """Sampling as asked for: None means the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repetition_window: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopChoices:
    """When to stop, as asked for. `max_tokens` None means the model's default."""

    max_tokens: int | None = None
    sequences: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class OutputChoices:
    """What to return beside the text. `top_logprobs` None: no logprobs; 0: the chosen token's only."""

    token_ids: bool = False
    top_logprobs: int | None = None
    rendered_prompt: bool = False
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class SchedulingChoices:
    """Scheduling as asked for. `contention` None means the server's policy."""

    contention: ContentionPolicy | None = None
    priority: int = 0
    load_if_needed: bool = True
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request that passed the checks of form (rpc/validate.py); those that need the model come in serving."""

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingChoices = field(default_factory=SamplingChoices)
    stop: StopChoices = field(default_factory=StopChoices)
    output: OutputChoices = field(default_factory=OutputChoices)
    scheduling: SchedulingChoices = field(default_factory=SchedulingChoices)
    session_id: str = ""
    waiting_events: bool = False
    coalesce_seconds: float | None = None


# --- what an engine is asked for, and what it answers -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling with every choice made. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and the penalties'
    neutral values (1, 0, 0) turn each off. The token at output position p draws from key (seed, p) alone."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One sequence for an engine. Every id lies inside the vocabulary and `len(prompt_ids) >= 1`.

    Attributes:
        prompt_ids: the prompt's token ids.
        emitted_ids: output ids from before an interruption; the engine goes on behind them, and they count for
            penalties and for the sampling position, but not for max_tokens.
        max_tokens: most tokens still to generate, >= 1.
        end_ids: ids that end the output (end-of-sequence and the request's stop tokens).
        top_logprobs: None for no logprobs, else the number of alternatives.
        grammar: what the output has to follow, from its first token (emitted_ids included) on.
        cache_identity: whose prefixes it may reuse, and who may reuse its own: those of the same identity.
        session_id: the conversation it belongs to; its prefix is kept longer than others. "" for none.
        pictures: what is shown at the placeholders in prompt_ids; None for text alone.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    emitted_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    cache_identity: str = ""
    session_id: str = ""
    pictures: PictureFeatures | None = None

    @property
    def context_tokens(self) -> int:
        """What is prefilled: the prompt, and what was emitted before an interruption."""
        return len(self.prompt_ids) + len(self.emitted_ids)

    @property
    def total_tokens(self) -> int:
        """Context and output together, at its end."""
        return self.context_tokens + self.max_tokens

    @property
    def media_nbytes(self) -> int:
        """Most bytes that looking at its pictures takes."""
        return 0 if self.pictures is None else self.pictures.work_nbytes


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a token under the raw logits, and (id, logprob) of alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Token:
    """One decoded token of the sequence `uid`.

    Attributes:
        ended: "" while the sequence goes on, else "end_id" (this token is one of end_ids; it is not output) or
            "length" (max_tokens reached with this token, which is output).
        failure: set when the sequence failed by itself (NaN logits, a failing processor); it is out of the engine.
        cached_tokens: with the sequence's first token: how many of its context were in the prefix cache.
    """

    uid: int
    token_id: int
    logprob: TokenLogprob | None = None
    ended: str = ""
    failure: str = ""
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in seconds; the parts add up to total."""

    queue: float = 0.0
    load: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that served a request."""

    name: str
    revision: str
    load_generation: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Event: not running."""

    state: WaitState
    queue_position: int = 0
    load_progress: float = 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """Event: admitted; once, before any delta."""

    request_id: str
    model: ServedModel
    prompt_tokens: int
    rendered_prompt: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The tool call number `index` of an output, whole."""

    index: int
    call: ToolCall


@dataclass(slots=True)
class Delta:
    """Event: new output. `completion_tokens` counts all so far."""

    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    completion_tokens: int = 0
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the end; once, last."""

    finish_reason: FinishReason
    matched_stop: str
    usage: Usage
    timing: Timing
    preemptions: int = 0


Event = Waiting | Started | Delta | Finished
