"""An interrupted request goes on as if nothing had happened; or, where the server says so, ends with ABORTED."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from support.contention import Client, Output, connected, policy, request, unary
from support.servers import ServerProcess
from support.wire import error_details, facts_of, reason_of

PREEMPT = policy("preempt")
PENALTIES = {"repetition_penalty": 1.3, "repetition_window": 32, "presence_penalty": 0.4, "frequency_penalty": 0.2}


async def interrupted(client: Client, *, at: int, times: int = 1, tokens: int = 60, **options: Any) -> Output:
    """A request to `a` that `b` interrupts after `at` tokens, so many times."""
    victim = client.ask("a", tokens, **options)
    for turn in range(1, times + 1):
        await victim.tokens(at * turn)
        await client.answer("b", 3, contention=PREEMPT)
    output = await victim.result()
    assert output.finished.preemptions == times
    return output


def assert_same(output: Output, alone: Output) -> None:
    assert output.ids == alone.ids
    assert output.text == alone.text
    assert output.finished.finish_reason == alone.finished.finish_reason
    assert output.finished.matched_stop == alone.finished.matched_stop
    assert output.finished.usage.prompt_tokens == alone.finished.usage.prompt_tokens  # cached ones may be more
    assert output.finished.usage.completion_tokens == alone.finished.usage.completion_tokens == len(output.ids)
    assert len(output.logprobs) == len(alone.logprobs)
    for mine, theirs in zip(output.logprobs, alone.logprobs, strict=True):
        assert mine.token_id == theirs.token_id
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [top.token_id for top in mine.top] == [top.token_id for top in theirs.top]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 7, "temperature": 0.9, "top_p": 0.95, "top_k": 40},
        {"logprobs": 3},
        {"seed": 3, "temperature": 1.2, "logprobs": 2, **PENALTIES},
        {**PENALTIES},
        {"logit_bias": {65: 4.0, 66: -2.0}},
        {"regex": "((ab|cd)[0-9]{2,5}-){5}end"},
        {"regex": "(.{9}X){5}", "seed": 5, "temperature": 1.0},
    ],
    ids=[
        "greedy",
        "seeded",
        "logprobs",
        "seeded-penalties-logprobs",
        "penalties",
        "bias",
        "constrained",
        "constrained-seeded",
    ],
)
async def test_a_resumed_output_is_that_of_an_uninterrupted_run(client: Client, options: dict[str, Any]) -> None:
    alone = await client.answer("a", 60, **options)
    assert_same(await interrupted(client, at=20, **options), alone)


async def test_interrupted_again_and_again_the_output_is_the_same(client: Client) -> None:
    options = {"seed": 11, "temperature": 0.8, "logprobs": 0, **PENALTIES}
    alone = await client.answer("a", 120, **options)
    assert_same(await interrupted(client, at=20, times=3, tokens=120, **options), alone)


async def test_a_stop_sequence_whose_prefix_is_held_back_across_the_interruption_still_matches(client: Client) -> None:
    """The stop begins before the interruption and ends behind it."""
    alone = await client.answer("a", 90)
    whole = alone.text
    for at in range(20, 60):  # a stretch of text that occurs first just there, and spans the tokens at..at+8
        stop = whole[at : at + 12]
        if whole.index(stop) == at and "\N{REPLACEMENT CHARACTER}" not in stop:
            break
    else:
        pytest.fail(f"no stretch to stop at in {whole!r}")
    stopped = await client.answer("a", 90, stop=[stop])
    assert stopped.finished.matched_stop == stop
    assert stopped.text == whole[:at]
    preemptions = 0
    for back in (8, 6, 4) * 5:  # a few steps before its end: on a busy machine the preemption may come too late
        victim = client.ask("a", 90, stop=[stop])
        await victim.tokens(len(stopped.ids) - back)
        await client.answer("b", 3, contention=PREEMPT)
        output = await victim.result()
        assert_same(output, stopped)
        preemptions += output.finished.preemptions
        if preemptions == 3:
            break
    assert preemptions > 0


async def test_interrupted_in_the_middle_of_a_character_no_byte_is_lost(client: Client) -> None:
    """The random model emits bytes that are no UTF-8 all the time: whatever is held back, nothing gets lost."""
    for at in range(5, 25, 4):
        options = {"seed": at, "temperature": 1.5}
        alone = await client.answer("a", 30, **options)
        assert_same(await interrupted(client, at=at, tokens=30, **options), alone)


async def test_many_streams_are_interrupted_together_and_each_is_right(client: Client) -> None:
    options = [{"seed": n, "temperature": 1.0, "prompt": f"prompt {n} " * (n + 1)} for n in range(8)]
    alone = [await client.answer("a", 50, **o) for o in options]
    victims = [client.ask("a", 50, **o) for o in options]
    for victim in victims:
        await victim.tokens(5)
    await client.answer("b", contention=PREEMPT)
    for victim, right in zip(victims, alone, strict=True):
        output = await victim.result()
        assert_same(output, right)
        assert output.finished.preemptions == 1


async def test_a_unary_call_is_resumed_too(client: Client) -> None:
    alone = await client.answer("a", 100)
    call = client.inference.Generate(unary(request("a", 100)))
    await client.until_state("a", "LOADED")
    async with asyncio.timeout(10):
        while (await client.model("a")).running_requests == 0:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)
    await client.answer("b", contention=PREEMPT)
    response = await call
    assert list(response.token_ids) == alone.ids
    assert response.text == alone.text
    assert response.preemptions == 1
    assert response.usage.completion_tokens == alone.finished.usage.completion_tokens == 100


async def test_the_resumed_stream_tells_one_start_and_a_gapless_sequence(client: Client) -> None:
    output = await interrupted(client, at=10)
    assert "waiting" not in output.events
    assert output.started.model.load_generation < (await client.model("a")).load_generation


async def test_the_interruption_is_told_only_to_those_who_asked(client: Client) -> None:
    asked = client.ask("a", 60, waiting_events=True)
    silent = client.ask("a", 60)
    await asked.tokens(5)
    await silent.tokens(5)
    await client.answer("b", contention=PREEMPT)
    output = await asked.result()
    assert output.wait_states[-1] == "PREEMPTED"
    assert output.events.index("started") < len(output.events) - 1 - output.events[::-1].index("waiting")
    assert "waiting" not in (await silent.result()).events


async def test_prefill_is_interrupted_too(client: Client) -> None:
    """Seven chunks of prefill, 4 ms and more each; whether the first token came or not, the output is the same."""
    prompt = "many words " * 300
    alone = await client.answer("a", 20, prompt=prompt)
    victim = client.ask("a", 20, prompt=prompt)
    await victim.until(lambda output: output.started is not None)
    assert len(victim.output.ids) < 20
    await client.answer("b", contention=PREEMPT)
    output = await victim.result()
    assert_same(output, alone)


async def test_queued_behind_rows_a_request_survives_the_preemption(client: Client) -> None:
    """Not admitted when its model is preempted: it just waits again, and no preemption is counted for it."""
    alone = await client.answer("a", 5)
    crowd = [client.ask("a", 40, prompt=f"{n}") for n in range(64)]
    await crowd[-1].tokens(1)
    queued = client.ask("a", 5, waiting_events=True)
    await queued.waits("QUEUED")
    await client.answer("b", contention=PREEMPT)
    output = await queued.result()
    assert output.ids == alone.ids
    for member in crowd:
        assert len((await member.result()).ids) == 40


async def test_not_yet_admitted_when_its_model_is_preempted_a_request_waits_whatever_its_strategy(
    client: Client,
) -> None:
    """It had its lease: it is not refused for room now, and does not preempt the preemptor in turn."""
    crowd = [client.ask("a", 60, prompt=f"{n}") for n in range(64)]
    await crowd[-1].tokens(1)
    queued = [client.ask("a", 5, contention=policy(name), waiting_events=True) for name in ("fail", "preempt")]
    for answer in queued:
        await answer.waits("QUEUED")
    preemptor = client.ask("b", 100, contention=PREEMPT)
    assert (await preemptor.result()).finished.preemptions == 0
    for answer in queued:
        output = await answer.result()
        assert len(output.ids) == 5
        assert output.finished.preemptions == 0
    for member in crowd:
        await member.result()


async def test_the_deadline_goes_on_while_interrupted(client: Client) -> None:
    victim = client.ask("a", 3000, timeout=3.0)
    await victim.tokens(5)
    blocker = client.ask("b", 3000, contention=PREEMPT)
    await blocker.tokens(2)
    error = await victim.error()
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 2.9 <= victim.seconds < 15
    await client.until_state("a", "UNLOADED")


async def test_with_its_deadline_too_near_a_request_is_not_resumed(client: Client) -> None:
    victim = client.ask("a", 3000, timeout=0.9)
    await victim.tokens(5)
    await client.run("b", contention=PREEMPT)
    error = await victim.error()
    assert error.code() is grpc.StatusCode.ABORTED
    assert reason_of(error) == "PREEMPTED"


async def test_an_interrupted_request_waits_whatever_its_strategy_and_never_preempts_in_turn(client: Client) -> None:
    alone = await client.answer("a", 60)
    for strategy in ("fail", "preempt", "wait_then_fail"):
        victim = client.ask("a", 60, contention=policy(strategy))
        await victim.tokens(5)
        preemptor = client.ask("b", 120, contention=PREEMPT)
        await preemptor.tokens(60)
        assert not victim.is_over
        assert (await preemptor.result()).finished.preemptions == 0
        assert (await victim.result()).ids == alone.ids


async def test_a_request_is_not_preempted_for_ever_by_one_rival(client: Client) -> None:
    alone = await client.answer("a", 300)
    victim = client.ask("a", 300)
    for turn in range(1, 4):
        await victim.tokens(20 * turn)
        assert len((await client.answer("b", 2, contention=PREEMPT)).ids) == 2
    await victim.tokens(80)
    rival = client.ask("b", 2, contention=PREEMPT)  # the victim is left alone now: this one waits for its end
    output = await victim.result()
    assert output.ids == alone.ids
    assert output.finished.preemptions == 3
    assert len((await rival.result()).ids) == 2


async def test_when_the_preemptor_leaves_in_the_midst_nothing_is_lost(client: Client) -> None:
    alone = await client.answer("a", 100)
    for _ in range(5):
        victim = client.ask("a", 100)
        await victim.tokens(5)
        preemptor = client.ask("slow-load-x", contention=PREEMPT, waiting_events=True)
        await preemptor.until(lambda output: output.waiting != [])
        await preemptor.leave()
        assert (await victim.result()).ids == alone.ids


# --- preempted_requests: abort ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aborting(start_server: Any) -> ServerProcess:
    """A server that ends what it preempts."""
    return start_server(manager={"preempted_requests": "abort"}, models=start_server.entries("a", "b"))


@pytest.fixture
async def abort_client(aborting: ServerProcess) -> AsyncIterator[Client]:
    async with connected(aborting) as client:
        yield client


async def test_an_aborted_stream_says_by_whom_and_how_far_it_got(abort_client: Client) -> None:
    victim = abort_client.ask("a", 3000, request_id="victim-1")
    await victim.tokens(5)
    await abort_client.answer("b", contention=PREEMPT)
    error = await victim.error()
    assert error.code() is grpc.StatusCode.ABORTED
    assert reason_of(error) == "PREEMPTED"
    facts = facts_of(error)
    assert facts == {
        "model": "a",
        "by_model": "b",
        "completion_tokens": str(len(victim.output.ids)),
        "last_sequence": str(victim.output.sequences[-1]),
        "request_id": "victim-1",
    }
    assert error_details(error)["RetryInfo"].retry_delay.ToNanoseconds() > 0


async def test_an_aborted_unary_call_says_so_too(abort_client: Client) -> None:
    call = abort_client.inference.Generate(unary(request("a", 3000, request_id="victim-2")))
    async with asyncio.timeout(10):
        while (await abort_client.model("a")).running_requests == 0:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    await abort_client.answer("b", contention=PREEMPT)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert reason_of(caught.value) == "PREEMPTED"
    facts = facts_of(caught.value)
    assert facts["by_model"] == "b"
    assert facts["request_id"] == "victim-2"
    assert int(facts["completion_tokens"]) > 0
