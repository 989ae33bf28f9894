"""What a request asks for against what its model can take: choices made, limits checked. Pure."""

from dataclasses import dataclass
from typing import TypeVar

from inferd_server.core.errors import FieldViolation, invalid_parameter, prompt_too_long
from inferd_server.core.generation import (
    FinishReason,
    GenerationRequest,
    Prompt,
    RawPrompt,
    Sampling,
    SamplingChoices,
    StopChoices,
    TokenPrompt,
)
from inferd_server.core.model import ModelEntry, SamplingDefaults

DEFAULT_REPETITION_WINDOW = 64

Number = TypeVar("Number", int, float)


def prompt_field(prompt: Prompt) -> str:
    """The field of the request that holds the prompt, as named in the proto."""
    if isinstance(prompt, RawPrompt):
        return "prompt"
    return "tokens.ids" if isinstance(prompt, TokenPrompt) else "chat"


def vocabulary_violations(
    prompt: Prompt | None, sampling: SamplingChoices, stop: StopChoices, vocabulary_size: int
) -> list[FieldViolation]:
    """Every id that lies outside the vocabulary: an engine would read foreign memory for it."""
    allowed = f"must be below the vocabulary's size, {vocabulary_size}"
    found = []
    if sampling.top_k is not None and sampling.top_k > vocabulary_size:
        found.append(
            FieldViolation("sampling.top_k", f"{sampling.top_k} is larger than the vocabulary, {vocabulary_size}")
        )
    found += [
        FieldViolation(f"sampling.logit_bias[{token_id}]", f"token id {token_id} {allowed}")
        for token_id in sampling.logit_bias
        if token_id >= vocabulary_size
    ]
    found += [
        FieldViolation(f"stop.token_ids[{i}]", f"token id {token_id} {allowed}")
        for i, token_id in enumerate(stop.token_ids)
        if token_id >= vocabulary_size
    ]
    if isinstance(prompt, TokenPrompt):
        found += [
            FieldViolation(f"tokens.ids[{i}]", f"token id {token_id} {allowed}")
            for i, token_id in enumerate(prompt.ids)
            if token_id >= vocabulary_size
        ]
    return found


def check_prompt_ids(prompt: Prompt, ids: list[int], entry: ModelEntry) -> None:
    """Refuse a prompt that has no token, ids beyond the embedding, or no room for one token of output.

    Raises:
        InferdError: INVALID_PARAMETER or PROMPT_TOO_LONG.
    """
    field = prompt_field(prompt)
    if not ids:
        raise invalid_parameter([FieldViolation(field, "the prompt has no tokens")])
    largest = max(ids)
    if largest >= entry.vocabulary_size:
        # A tokenizer's added tokens can exceed the embedding.
        text = f"token id {largest} lies outside the model's vocabulary of {entry.vocabulary_size}"
        raise invalid_parameter([FieldViolation(field, text)])
    if entry.context_length and len(ids) >= entry.context_length:
        raise prompt_too_long(field, len(ids), entry.context_length)


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """How many tokens may be generated, and what the end by length is called."""

    tokens: int
    reason: FinishReason


def length_limit(stop: StopChoices, prompt_tokens: int, entry: ModelEntry, most: int | None = None) -> LengthLimit:
    """max_tokens as asked for, else the model's default; at most `most`. The context's end comes first where it is
    nearer."""
    wanted = entry.defaults.max_tokens if stop.max_tokens is None else stop.max_tokens
    wanted = wanted if most is None else min(wanted, most)
    room = entry.context_length - prompt_tokens
    if entry.context_length and room < wanted:
        return LengthLimit(room, FinishReason.CONTEXT_LENGTH)
    return LengthLimit(wanted, FinishReason.MAX_TOKENS)


def resolve_sampling(choices: SamplingChoices, defaults: SamplingDefaults, fresh_seed: int) -> Sampling:
    """Every choice made: the request's, else the model's default; without a seed, fresh entropy."""

    def chosen(asked: Number | None, default: Number) -> Number:
        return default if asked is None else asked

    return Sampling(
        temperature=chosen(choices.temperature, defaults.temperature),
        top_p=chosen(choices.top_p, defaults.top_p),
        top_k=chosen(choices.top_k, defaults.top_k),
        min_p=chosen(choices.min_p, defaults.min_p),
        repetition_penalty=chosen(choices.repetition_penalty, defaults.repetition_penalty),
        repetition_window=chosen(choices.repetition_window, DEFAULT_REPETITION_WINDOW),
        presence_penalty=chosen(choices.presence_penalty, 0.0),
        frequency_penalty=chosen(choices.frequency_penalty, 0.0),
        seed=chosen(choices.seed, fresh_seed),
        logit_bias=choices.logit_bias,
    )


def check_request(request: GenerationRequest, entry: ModelEntry) -> None:
    """The checks that need the model's vocabulary.

    Raises:
        InferdError: INVALID_PARAMETER with every violation.
    """
    found = vocabulary_violations(request.prompt, request.sampling, request.stop, entry.vocabulary_size)
    if found:
        raise invalid_parameter(found)
