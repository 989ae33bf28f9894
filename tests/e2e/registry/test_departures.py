"""However a request ends, wherever it stands: no lease, ticket or row is left, and the ledger is exact."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.contention import Answer, Client, policy
from support.servers import ServerProcess
from support.wire import facts_of, reason_of

SLOW = "slow-load-x"
LONG_PROMPT = "many words " * 350


# --- where it stands --------------------------------------------------------------------------------------------------


async def queued(client: Client, leaver: "Leaver") -> Any:
    """For room: `a` is in the way."""
    await client.run("a", preemptible=False)
    return await leaver.begin("b", "QUEUED", contention=policy("wait"))


async def loading(client: Client, leaver: "Leaver") -> Any:
    return await leaver.begin(SLOW, "LOADING")


async def prefilling(client: Client, leaver: "Leaver") -> Any:
    await client.load("a")
    return await leaver.begin("a", "started", prompt=LONG_PROMPT, tokens=100)


async def decoding(client: Client, leaver: "Leaver") -> Any:
    return await leaver.begin("a", "delta")


async def interrupted(client: Client, leaver: "Leaver") -> Any:
    """Preempted by `b`, which goes on."""
    left = await leaver.begin("a", "delta")
    await client.run("b", contention=policy("preempt"), preemptible=False)
    await leaver.until(left, "PREEMPTED")
    return left


class Leaver:
    """A request that is going to end before its time, by a client of its own in this process."""

    def __init__(self, address: str) -> None:
        self.client = Client(address)
        self.timeout: float | None = None

    async def begin(self, model: str, until: str, *, tokens: int = 3900, **options: Any) -> Answer:
        answer = self.client.ask(
            model, tokens, timeout=self.timeout, request_id="leaver", waiting_events=True, **options
        )
        await self.until(answer, until)
        return answer

    async def until(self, answer: Answer, event: str) -> None:
        if event.islower():
            await answer.until(lambda output: event in output.events)
        else:
            await answer.waits(event)


class ProcessLeaver:
    """The same request by a client process, which gets killed."""

    CODE = """
import asyncio, sys
from support.contention import Client
async def main(address, model, tokens, options):
    client = Client(address)
    answer = client.ask(model, tokens, request_id="leaver", waiting_events=True, **options)
    seen = set()
    def look(output):
        for word in [*output.events, *output.wait_states]:
            if word not in seen:
                seen.add(word)
                print(word, flush=True)
        return False
    await answer.until(look, 60)
from support.contention import policy
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])))
"""

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: asyncio.subprocess.Process | None = None

    async def begin(self, model: str, until: str, *, tokens: int = 3900, **options: Any) -> None:
        contention = options.pop("contention", None)
        text = repr(options) if contention is None else f"dict(contention=policy('wait'), **{options!r})"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", self.CODE, self._address, model, str(tokens), text),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        await self.until(None, until)

    async def until(self, _answer: None, event: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            while (word := (await self._process.stdout.readline()).decode()).strip() != event:
                assert word, "the client process ended"

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.communicate()


Situation = Callable[[Client, Any], Awaitable[Any]]
SITUATIONS: list[Situation] = [queued, loading, prefilling, decoding, interrupted]
each_situation = pytest.mark.parametrize("situation", SITUATIONS, ids=[f.__name__ for f in SITUATIONS])


async def assert_gone(client: Client, situation: Situation) -> None:
    """Soon nothing of the request is left; what stands in its place goes on."""
    async with asyncio.timeout(3):
        while True:
            models = {model.name: model for model in (await client.list()).models}
            waiting = sum(model.waiting_requests for model in models.values())
            running = sum(model.running_requests for model in models.values())
            if waiting == 0 and running == (1 if situation in (queued, interrupted) else 0):
                break
            await asyncio.sleep(0.01)
    for answer in client._answers:
        await answer.tokens(len(answer.output.ids) + 2)
        await answer.leave()
    for name in ("a", "b"):  # and the places are free
        assert len((await client.answer(name, 3, contention=policy("wait_then_fail", wait_timeout=5))).ids) == 3


@each_situation
async def test_a_call_cancelled_by_its_client_leaves_nothing(
    client: Client, one_place: ServerProcess, situation: Situation
) -> None:
    leaver = Leaver(one_place.address)
    answer = await situation(client, leaver)
    await answer.leave()
    await assert_gone(client, situation)
    await leaver.client.close()


@each_situation
async def test_a_request_cancelled_by_its_id_leaves_nothing(
    client: Client, one_place: ServerProcess, situation: Situation
) -> None:
    leaver = Leaver(one_place.address)
    answer = await situation(client, leaver)
    assert await client.cancel("leaver")
    assert not await client.cancel("leaver")
    error = await answer.error(3)
    assert error.code() is grpc.StatusCode.CANCELLED
    assert reason_of(error) == "CANCELLED_BY_REQUEST"
    assert facts_of(error)["request_id"] == "leaver"
    if answer.output.started is not None:
        assert facts_of(error)["completion_tokens"] == str(len(answer.output.ids))
        assert facts_of(error)["last_sequence"] == str(answer.output.sequences[-1])
    await assert_gone(client, situation)
    await leaver.client.close()


@each_situation
async def test_a_request_whose_deadline_passes_leaves_nothing(
    client: Client, one_place: ServerProcess, situation: Situation
) -> None:
    leaver = Leaver(one_place.address)
    leaver.timeout = {interrupted: 3.0, loading: 0.4, prefilling: 0.4}.get(situation, 1.0)
    answer = await situation(client, leaver)
    error = await answer.error()
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.seconds >= leaver.timeout * 0.95
    await assert_gone(client, situation)
    await leaver.client.close()


@each_situation
async def test_a_killed_client_leaves_nothing(client: Client, one_place: ServerProcess, situation: Situation) -> None:
    leaver = ProcessLeaver(one_place.address)
    try:
        await situation(client, leaver)
    finally:
        await leaver.kill()
    await assert_gone(client, situation)


async def test_a_crowd_of_waiters_that_leaves_at_once_leaves_nothing(client: Client, other: Client) -> None:
    victim = await client.run("a")
    crowd = [other.ask(name, contention=policy("wait")) for name in ("b", "c", SLOW) for _ in range(60)]
    async with asyncio.timeout(10):
        while sum(model.waiting_requests for model in (await client.list()).models) < 180:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await other.channel.close()
    await asyncio.gather(*(answer.leave() for answer in crowd))
    async with asyncio.timeout(5):
        while sum(model.waiting_requests for model in (await client.list()).models):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await victim.tokens(len(victim.output.ids) + 3)
