"""A server with little memory for requests: what fits later waits, what never fits is refused, nothing exceeds it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from support import calls, tiny_llama, tiny_vlm
from support.calls import Peer
from support.servers import ServerProcess, serving, write_config
from support.wire import facts_of, reason_of

LIMIT_NBYTES = 3 * 2**19
"""The tiny model's cache takes 512 bytes per token: room for one answer of 500 tokens (with copies), not for two."""
PATH = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("memory")
    model = tiny_llama.build(folder / "model", context_length=100_000)
    eyes = tiny_vlm.build(folder / "eyes", max_pixels=1_000_000)
    models = [{"name": "tiny", "path": model, "preload": True}, {"name": "eyes", "path": eyes}]
    config = write_config(folder, models, budget_gb=1)
    with serving(
        config, program=("-m", "fakes.small_memory"), PYTHONPATH=PATH, INFERD_TEST_WORK_LIMIT=str(LIMIT_NBYTES)
    ) as server:
        server.wait_for_log("measuring")
        yield server


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as connection:
        yield connection


async def test_a_request_that_can_never_fit_is_refused_with_the_numbers(peer: Peer) -> None:
    request = calls.unary("tiny", prompt="hello", max_tokens=50_000)
    error = await calls.failure_of(peer.inference.Generate(request, timeout=20))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error) == "OUT_OF_MEMORY"
    facts = facts_of(error)
    assert int(facts["limit_bytes"]) == LIMIT_NBYTES
    assert int(facts["required_bytes"]) > 2 * 512 * 50_000


async def test_prompt_tokens_that_were_seen_before_are_reported_and_change_nothing(peer: Peer) -> None:
    story = "once upon a time " * 5
    first = await peer.inference.Generate(calls.unary("tiny", prompt=story, max_tokens=8), timeout=20)
    again = await peer.inference.Generate(calls.unary("tiny", prompt=story, max_tokens=8), timeout=20)
    other = await calls.read(peer.inference.StreamGenerate(calls.streamed("tiny", prompt=story + "!", max_tokens=8)))
    assert (first.usage.prompt_tokens, first.usage.cached_prompt_tokens) == (85, 0)
    assert again.usage.cached_prompt_tokens == 84
    assert again.text == first.text
    assert other.end.usage.cached_prompt_tokens == 85
    model = await peer.wait_for_model("tiny", lambda model: 0 < model.memory.cache_bytes <= LIMIT_NBYTES)
    assert model.running_requests == 0


async def test_many_that_fit_only_one_after_the_other_all_finish_within_the_limit(
    peer: Peer, server: ServerProcess
) -> None:
    async def one(number: int) -> int:
        request = calls.unary("tiny", prompt=f"{number} " * 20, max_tokens=500, seed=number, ignore_eos=True)
        answer = await peer.inference.Generate(request, timeout=60)
        return int(answer.usage.completion_tokens)

    running = []

    async def watch() -> None:
        while True:
            model = await peer.model("tiny")
            running.append(model.running_requests)
            await asyncio.sleep(0.01)

    watcher = asyncio.create_task(watch())
    assert await asyncio.gather(*map(one, range(6))) == [500] * 6
    watcher.cancel()
    assert max(running) == 1
    server.signal(10)  # SIGUSR1: log the peak
    line = server.wait_for_log("peak_nbytes=")
    peak = int(line.split("peak_nbytes=")[1].split()[0])
    assert 0 < peak <= LIMIT_NBYTES


# The last: what its model takes, and the room that its prefix cache gets, is not the others' business.
async def test_looking_at_pictures_counts_too(peer: Peer) -> None:
    shown = {side: tiny_vlm.encoded(tiny_vlm.noise(1, side, side)) for side in (60, 500)}
    request = calls.unary("eyes", chat=[("user", [shown[60], "?"])], max_tokens=4)
    assert (await peer.inference.Generate(request, timeout=20)).usage.prompt_tokens > 4
    error = await calls.failure_of(peer.inference.Generate(calls.unary("eyes", chat=[("user", [shown[500], "?"])])))
    assert reason_of(error) == "OUT_OF_MEMORY"
    assert int(facts_of(error)["required_bytes"]) > 2 * 4 * (500 // 14) ** 4  # the scores of two heads alone
