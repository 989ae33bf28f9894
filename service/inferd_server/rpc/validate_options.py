"""The checks of a request's options: sampling, stopping, output, scheduling, ids."""

import re
import sys
from collections.abc import Sequence

from inferd.v1 import generation_pb2
from inferd_server.core.access import MAX_PRIORITY
from inferd_server.core.model import ModelEntry
from inferd_server.serving.limits import vocabulary_violations

from .contention import check_policy
from .convert import GenerationMessage, to_sampling, to_stop
from .services import ServerInfo
from .violations import Interval, Violations

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_STOP_SEQUENCES = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 64
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 1024
MAX_CONSTRAINT_CHARACTERS = 262_144
MAX_TOKEN_VIOLATIONS = 64

FINITE = Interval(-sys.float_info.max, sys.float_info.max)
SAMPLING_INTERVALS = {
    "temperature": Interval(0, 100),
    "top_p": Interval(0, 1, without_low=True),
    "min_p": Interval(0, 1),
    "repetition_penalty": Interval(0, sys.float_info.max, without_low=True),
    "repetition_window": Interval(1, 8192),
    "presence_penalty": Interval(-2, 2),
    "frequency_penalty": Interval(-2, 2),
}


def check_request_id(request_id: str, violations: Violations) -> None:
    """Empty, or a handle for logs and CancelGeneration."""
    claim = not request_id or REQUEST_ID.fullmatch(request_id) is not None
    violations.require(claim, "request_id", f"must be empty or match {REQUEST_ID.pattern}")


def check_token_ids(ids: Sequence[int], entry: ModelEntry, violations: Violations) -> None:
    """A prompt in ids: not empty, every id inside the vocabulary. A prompt beyond the context is left to
    PROMPT_TOO_LONG, and of many bad ids only the first are named."""
    violations.require(len(ids) > 0, "tokens.ids", "must not be empty")
    if not entry.vocabulary_size or is_too_long(ids, entry):
        return
    bad = [i for i, token_id in enumerate(ids) if token_id >= entry.vocabulary_size]
    for i in bad[:MAX_TOKEN_VIOLATIONS]:
        violations.add(f"tokens.ids[{i}]", _outside(ids[i], entry))
    if len(bad) > MAX_TOKEN_VIOLATIONS:
        violations.add("tokens.ids", f"{len(bad)} ids lie outside the vocabulary")


def is_too_long(ids: Sequence[int], entry: ModelEntry) -> bool:
    """Whether ids leave no room for one token of output."""
    return 0 < entry.context_length <= len(ids)


def _outside(token_id: int, entry: ModelEntry) -> str:
    return f"token id {token_id} must be below the vocabulary's size, {entry.vocabulary_size}"


def check_vocabulary(message: GenerationMessage, entry: ModelEntry, violations: Violations) -> None:
    """Ids and top_k of the options against the vocabulary; not where there are too many ids anyway."""
    bounded = len(message.sampling.logit_bias) <= MAX_LOGIT_BIAS and len(message.stop.token_ids) <= MAX_STOP_TOKENS
    if entry.vocabulary_size and bounded:
        violations.found += vocabulary_violations(
            None, to_sampling(message.sampling), to_stop(message.stop), entry.vocabulary_size
        )


def check_sampling(sampling: generation_pb2.SamplingOptions, violations: Violations) -> None:
    """Every number finite and in its interval."""
    for name, interval in SAMPLING_INTERVALS.items():
        value = getattr(sampling, name)
        if sampling.HasField(name) and value not in interval:
            violations.add(f"sampling.{name}", f"{value:g} is not {interval}")
    bias = sampling.logit_bias
    allowed = len(bias) <= MAX_LOGIT_BIAS
    if violations.require(allowed, "sampling.logit_bias", f"at most {MAX_LOGIT_BIAS} entries are allowed"):
        for token_id, value in bias.items():
            violations.require(value in FINITE, f"sampling.logit_bias[{token_id}]", f"{value:g} is not finite")


def check_stop(stop: generation_pb2.StopOptions, info: ServerInfo, violations: Violations) -> None:
    """At least one token, and no more than the limits allow; few and short sequences, few ids."""
    claim = not stop.HasField("max_tokens") or stop.max_tokens >= 1
    violations.require(claim, "stop.max_tokens", "at least 1 is needed")
    most = info.max_output_tokens
    claim = most is None or stop.max_tokens <= most
    violations.require(claim, "stop.max_tokens", f"at most {most} is allowed (max_output_tokens)")
    claim = len(stop.sequences) <= MAX_STOP_SEQUENCES
    violations.require(claim, "stop.sequences", f"at most {MAX_STOP_SEQUENCES} sequences are allowed")
    for i, sequence in enumerate(stop.sequences[:MAX_STOP_SEQUENCES]):
        violations.check_length(sequence, f"stop.sequences[{i}]", MAX_STOP_CHARACTERS, least=1)
    claim = len(stop.token_ids) <= MAX_STOP_TOKENS
    violations.require(claim, "stop.token_ids", f"at most {MAX_STOP_TOKENS} ids are allowed")


def check_output(
    output: generation_pb2.OutputOptions, stop: generation_pb2.StopOptions, violations: Violations
) -> None:
    """Few alternatives; a constraint that says something, and whose output may end."""
    claim = output.top_logprobs <= MAX_TOP_LOGPROBS
    violations.require(claim, "output.top_logprobs", f"at most {MAX_TOP_LOGPROBS} alternatives are allowed")
    if output.HasField("constraint"):
        _check_constraint(output.constraint, violations)
        claim = not stop.ignore_eos
        violations.require(claim, "stop.ignore_eos", "a constrained output has to be able to end")


def _check_constraint(constraint: generation_pb2.OutputConstraint, violations: Violations) -> None:
    kind = constraint.WhichOneof("constraint")
    field = f"output.constraint.{kind}"
    if kind is None:
        violations.add("output.constraint", "one of json_schema, regex, lark_grammar and choice must be set")
    elif kind == "choice":
        options = constraint.choice.options
        claim = 1 <= len(options) <= MAX_CHOICES
        violations.require(claim, f"{field}.options", f"between 1 and {MAX_CHOICES} strings are allowed")
        for i, option in enumerate(options[:MAX_CHOICES]):
            violations.check_length(option, f"{field}.options[{i}]", MAX_CONSTRAINT_CHARACTERS, least=1)
    elif kind == "json_schema":
        violations.check_json_object(constraint.json_schema, field, MAX_CONSTRAINT_CHARACTERS, least=1)
    else:
        violations.check_length(getattr(constraint, kind), field, MAX_CONSTRAINT_CHARACTERS, least=1)


def check_scheduling(scheduling: generation_pb2.SchedulingOptions, info: ServerInfo, violations: Violations) -> None:
    """Priority and contention within the server's limits."""
    claim = -MAX_PRIORITY <= scheduling.priority <= info.max_priority
    violations.require(claim, "scheduling.priority", f"must be between -{MAX_PRIORITY} and {info.max_priority}")
    if scheduling.HasField("contention"):
        check_policy(scheduling.contention, "scheduling.contention", info, violations)
