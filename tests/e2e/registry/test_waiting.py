"""Waiting events: why a request does not run, how far it is; only for those who asked."""

import asyncio

from support.contention import Client, policy

SLOW = "slow-load-x"
WAIT = policy("wait")


async def test_only_those_who_ask_are_told(client: Client) -> None:
    asked, silent = client.ask(SLOW, waiting_events=True), client.ask(SLOW)
    assert "waiting" in (await asked.result()).events
    assert "waiting" not in (await silent.result()).events


async def test_a_load_tells_its_progress(client: Client) -> None:
    output = await client.answer(SLOW, waiting_events=True)
    progress = [progress for _, state, _, progress in output.waiting if state == "LOADING"]
    assert len(progress) >= 3
    assert progress == sorted(progress)
    assert all(0 <= part <= 1 for part in progress)
    assert progress[-1] > 0.5


async def test_a_queued_request_tells_its_position_as_it_moves_up(client: Client) -> None:
    victim = client.ask("a", 250)
    await victim.tokens(1)
    first = client.ask("b", 100, contention=WAIT, waiting_events=True)
    await first.waits("QUEUED")
    second = client.ask("c", 2, contention=WAIT, waiting_events=True)
    await second.waits("QUEUED")
    third = client.ask(SLOW, 2, contention=WAIT, waiting_events=True)
    await third.waits("QUEUED")
    assert [a.output.waiting[0][2] for a in (first, second, third)] == [0, 1, 2]
    await asyncio.gather(first.result(), second.result(), third.result())
    positions = [position for _, _, position, _ in third.output.waiting]
    assert positions[0] == 2
    assert {0, 1} <= set(positions)
    assert positions == sorted(positions, reverse=True)


async def test_an_impatient_newcomer_moves_the_others_back(client: Client) -> None:
    await client.run("a")
    low = client.ask("b", contention=WAIT, waiting_events=True)
    await low.waits("QUEUED")
    client.ask("c", contention=WAIT, priority=100)
    await low.until(lambda output: output.waiting[-1][2] == 1)


async def test_what_is_waited_for_is_told_in_its_order(client: Client) -> None:
    victim = client.ask("a", 150)
    await victim.tokens(1)
    waiter = client.ask(SLOW, contention=WAIT, waiting_events=True)
    output = await waiter.result()
    states = output.wait_states
    assert states[0] == "QUEUED"
    assert states[-1] == "LOADING"
    assert output.events.index("started") == len(output.waiting)


async def test_a_full_model_tells_that_a_row_is_waited_for(client: Client) -> None:
    crowd = [client.ask("a", 60, prompt=str(n)) for n in range(64)]
    await crowd[-1].tokens(1)
    waiter = client.ask("a", 2, waiting_events=True)
    output = await waiter.result()
    assert output.wait_states == ["QUEUED"]
    for member in crowd:
        await member.result()
