"""Waiting for a row of a loaded model: how many requests are ahead is told as it changes."""

from collections.abc import AsyncIterator

import pytest

from support.contention import LONG, Answer, Client
from support.servers import ServerProcess


@pytest.fixture
async def client(main_server: ServerProcess) -> AsyncIterator[Client]:
    connection = Client(main_server.address)
    try:
        yield connection
    finally:
        await connection.close()
        checker = Client(main_server.address)
        await checker.settled()
        await checker.close()


async def is_told(answer: Answer, position: int) -> None:
    """Wait until so many are ahead of it."""
    await answer.until(lambda output: bool(output.waiting) and output.waiting[-1][1:3] == ("QUEUED", position))


async def test_a_place_in_the_engine_s_queue_is_by_priority_and_told_as_it_changes(client: Client) -> None:
    running = await client.run("serial")
    waiting = []
    for position in range(3):
        waiting.append(client.ask("serial", LONG, waiting_events=True))
        await is_told(waiting[-1], position)
    urgent = client.ask("serial", LONG, priority=50, waiting_events=True)
    await urgent.waits("QUEUED")
    assert urgent.output.waiting[0][2] == 0
    for position, answer in enumerate(waiting, start=1):
        await is_told(answer, position)
    for leaver in waiting[:2]:
        await leaver.leave()
    await is_told(waiting[2], 1)
    await running.leave()
    await urgent.tokens(1)
    await is_told(waiting[2], 0)
    await urgent.leave()
    await waiting[2].tokens(1)
    assert "waiting" not in waiting[2].output.events[waiting[2].output.events.index("started") :]
    assert [position for _, _, position, _ in urgent.output.waiting] == [0]
