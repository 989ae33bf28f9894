"""Clients that die, freeze or leave, by the hundred: what they held is free again, and nobody else notices."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from support.contention import Client, Output, policy, request
from support.servers import ServerProcess
from support.wholeness import Witness
from support.wire import reason_of

pytestmark = [pytest.mark.faults, pytest.mark.long]

TESTS = Path(__file__).parents[1]
KILLED, AT_ONCE = 100, 20
AT_THE_SAME_TIME = 3000
ABORTED = 1000
START_SECONDS = 60


@contextmanager
def client_processes(server: ServerProcess, model: str, count: int) -> Iterator[list[int]]:
    """The pids of so many processes, each in the middle of its stream; those that are left are killed at the end."""
    launcher = subprocess.Popen(
        [sys.executable, "-m", "support.killable_clients", server.address, model, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
    )
    assert launcher.stdout is not None
    try:
        with launcher.stdout as lines:
            limit = threading.Timer(START_SECONDS, os.killpg, (launcher.pid, signal.SIGKILL))
            limit.start()
            try:
                pids = [int(lines.readline()) for _ in range(count)]
            finally:
                limit.cancel()
            yield pids
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


async def test_a_hundred_clients_killed_in_the_middle_of_their_streams_leave_nothing_behind(
    server: ServerProcess, witness: Witness
) -> None:
    client = Client(server.address)
    bystander = await client.ask("two", 90_000).tokens(2)
    for _ in range(KILLED // AT_ONCE):
        with client_processes(server, "one", AT_ONCE) as pids:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        await bystander.tokens(len(bystander.output.ids) + 5)
    await bystander.leave()
    await client.close()


async def test_a_frozen_client_loses_its_row_and_others_go_on(server: ServerProcess, witness: Witness) -> None:
    client = Client(server.address)
    bystander = await client.ask("two", 90_000).tokens(2)
    with client_processes(server, "one", 2) as pids:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert (await client.model("one")).running_requests == 2
        async with asyncio.timeout(30):
            while (await client.model("one")).running_requests:
                await bystander.tokens(len(bystander.output.ids) + 5)
    await bystander.leave()
    await client.close()


async def test_a_thousand_aborts_at_random_moments_leave_nothing_behind(
    server: ServerProcess, witness: Witness
) -> None:
    dice = random.Random(6)
    reached: Counter[str] = Counter()
    clients = [Client(server.address) for _ in range(8)]
    places = asyncio.Semaphore(48)

    async def abort(number: int) -> None:
        async with places:
            await _abort_one(clients[number % len(clients)], random.Random(dice.random()), reached)

    await asyncio.gather(*(abort(number) for number in range(ABORTED)))
    for client in clients:
        await client.close()
    print(dict(reached))
    assert min(reached[stage] for stage in ("queued", "loading", "prefill", "decode")) >= 10, reached


async def test_thousands_of_calls_at_once_are_served_or_refused_with_a_reason(
    server: ServerProcess, witness: Witness
) -> None:
    clients = [Client(server.address) for _ in range(20)]
    for client in clients:
        await client.channel.channel_ready()

    async def ask(number: int) -> str:
        try:
            async for _ in clients[number % len(clients)].inference.StreamGenerate(request("one", 2)):
                pass
        except grpc.aio.AioRpcError as error:
            return reason_of(error)  # grpc's own refusals have none
        return "OK"

    outcomes = Counter(await asyncio.gather(*(ask(number) for number in range(AT_THE_SAME_TIME))))
    for client in clients:
        await client.close()
    print(outcomes)
    assert set(outcomes) <= {"OK", "QUEUE_FULL"}
    assert outcomes["OK"] >= 256


async def _abort_one(client: Client, dice: random.Random, reached: Counter[str]) -> None:
    """Ask, and leave at a random moment: by cancel or by deadline; notes where that was."""
    prompt = "x" * dice.choice([5, 5, 5000])
    deadline = dice.choice([None, None, dice.uniform(0.01, 0.5)])
    model = dice.choice(["one", "two", "slow-load"])
    strategy = policy(dice.choice(["preempt", "wait"]))
    answer = client.ask(model, 90_000, prompt=prompt, waiting_events=True, timeout=deadline, contention=strategy)
    if deadline is None:
        await asyncio.sleep(dice.uniform(0, 0.6))
        await answer.leave()
    else:
        await asyncio.wait([answer._task])
        error = answer._task.exception()
        assert isinstance(error, grpc.aio.AioRpcError), error
        is_deadline = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert is_deadline or reason_of(error) == "PREEMPTED", error  # its deadline was too near to resume
    reached[_stage_of(answer.output)] += 1


def _stage_of(output: Output) -> str:
    if output.ids:
        return "decode"
    if output.started is not None:
        return "prefill"
    states = output.wait_states
    return "loading" if states and states[-1] == "LOADING" else "queued"
