"""A request against its model's limits."""

from pathlib import Path

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.generation import (
    FinishReason,
    GenerationRequest,
    RawPrompt,
    SamplingChoices,
    StopChoices,
    TokenPrompt,
)
from inferd_server.core.model import EngineSettings, ModelEntry, SamplingDefaults
from inferd_server.serving.limits import check_prompt_ids, check_request, length_limit, resolve_sampling

ENTRY = ModelEntry(
    name="m",
    engine=EngineSettings(name="m", path=Path("/m")),
    context_length=100,
    vocabulary_size=50,
    defaults=SamplingDefaults(temperature=0.5, top_p=0.9, max_tokens=20),
)


def test_every_id_outside_the_vocabulary_is_named_at_once() -> None:
    request = GenerationRequest(
        request_id="",
        model="m",
        prompt=TokenPrompt((1, 50, 2)),
        sampling=SamplingChoices(top_k=51, logit_bias={50: 1.0, 3: 1.0}),
        stop=StopChoices(token_ids=(49, 99)),
    )
    with pytest.raises(InferdError) as caught:
        check_request(request, ENTRY)
    assert caught.value.reason is Reason.INVALID_PARAMETER
    assert [violation.field for violation in caught.value.violations] == [
        "sampling.top_k",
        "sampling.logit_bias[50]",
        "stop.token_ids[1]",
        "tokens.ids[1]",
    ]


def test_ids_at_the_border_pass() -> None:
    request = GenerationRequest(
        request_id="",
        model="m",
        prompt=TokenPrompt((0, 49)),
        sampling=SamplingChoices(top_k=50, logit_bias={49: 1.0}),
        stop=StopChoices(token_ids=(49,)),
    )
    check_request(request, ENTRY)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [([], Reason.INVALID_PARAMETER), ([50], Reason.INVALID_PARAMETER), ([1] * 100, Reason.PROMPT_TOO_LONG)],
)
def test_a_prompt_that_cannot_run_is_refused(ids: list[int], reason: Reason) -> None:
    with pytest.raises(InferdError) as caught:
        check_prompt_ids(RawPrompt("x"), ids, ENTRY)
    assert caught.value.reason is reason
    assert caught.value.violations[0].field == "prompt"


def test_a_prompt_that_leaves_room_for_one_token_passes() -> None:
    check_prompt_ids(RawPrompt("x"), [1] * 99, ENTRY)


@pytest.mark.parametrize(
    ("asked", "prompt_tokens", "tokens", "reason"),
    [
        (None, 10, 20, FinishReason.MAX_TOKENS),
        (None, 90, 10, FinishReason.CONTEXT_LENGTH),
        (5, 10, 5, FinishReason.MAX_TOKENS),
        (5000, 10, 90, FinishReason.CONTEXT_LENGTH),
        (90, 10, 90, FinishReason.MAX_TOKENS),
    ],
)
def test_the_length_limit(asked: int | None, prompt_tokens: int, tokens: int, reason: FinishReason) -> None:
    limit = length_limit(StopChoices(max_tokens=asked), prompt_tokens, ENTRY)
    assert (limit.tokens, limit.reason) == (tokens, reason)


def test_a_choice_outranks_the_default_even_when_it_is_zero() -> None:
    sampling = resolve_sampling(SamplingChoices(temperature=0.0, seed=0), ENTRY.defaults, fresh_seed=7)
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.0, 0.9, 0)


def test_without_a_seed_the_fresh_one_is_used() -> None:
    assert resolve_sampling(SamplingChoices(), ENTRY.defaults, fresh_seed=7).seed == 7
