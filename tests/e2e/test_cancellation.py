"""Leaving, in queue, prefill and decode: by cancel, deadline, closed channel, killed process. The row is free again."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support import tiny_llama
from support.calls import Peer, endless, failure_of, read, read_until, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.wire import facts_of, reason_of

PREFILL_TOKENS = 60_000
FREE_SECONDS = 1.5
"""Generous for shared cores; a step of these models takes about a millisecond, one of a prefill a few dozen."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`one` decodes one request at a time, `deep` takes seconds for a long prompt."""
    folder = tmp_path_factory.mktemp("cancellation")
    deep = tiny_llama.build(folder / "deep", layers=4, hidden=128, context_length=1_000_000)
    one = tiny_llama.build(folder / "one", context_length=1_000_000)
    models = [
        {"name": "one", "path": one, "preload": True, "continuous_batching": False},
        {"name": "deep", "path": deep, "preload": True, "continuous_batching": False, "prefill_step_size": 128},
        {"name": "many", "path": one, "preload": True, "max_batch_size": 8},
    ]
    with serving(write_config(folder, models, budget_gb=1)) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
async def watcher(server: ServerProcess) -> AsyncIterator[Peer]:
    """Looks on, from a connection of its own; afterwards nothing may run or wait."""
    async with Peer(server.address) as connection:
        yield connection
        for name in ("one", "deep", "many"):
            await connection.wait_until_idle(name)


async def reach(stage: str, peer: Peer, watcher: Peer, timeout: float | None = None) -> tuple[str, object]:
    """(model, call) of a request that stands in this stage; in a queue behind a request of `watcher`."""
    if stage == "queue":
        holding = watcher.inference.StreamGenerate(endless("one"))
        await read_until(holding, "delta")
        call = peer.inference.StreamGenerate(endless("one"), timeout=timeout)
        await watcher.wait_for_model("one", lambda model: model.waiting_requests == 1)
        peer.holding = holding  # type: ignore[attr-defined]
        return "one", call
    if stage == "prefill":
        call = peer.inference.StreamGenerate(streamed("deep", ids=[9] * PREFILL_TOKENS), timeout=timeout)
        await read_until(call, "started")
        return "deep", call
    call = peer.inference.StreamGenerate(endless("one"), timeout=timeout)
    await read_until(call, "delta")
    return "one", call


async def is_free(stage: str, model: str, watcher: Peer) -> float:
    """Seconds until the place was free again."""
    began = time.monotonic()
    if stage == "queue":
        await watcher.wait_for_model(model, lambda found: found.waiting_requests == 0, FREE_SECONDS)
        assert (await watcher.model(model)).running_requests == 1, "the one ahead must not notice"
    else:
        await watcher.wait_until_idle(model, FREE_SECONDS)
        freed = time.monotonic() - began
        # The engine itself is free too: the next request gets its first token at once.
        call = watcher.inference.StreamGenerate(streamed(model, prompt="x", max_tokens=1, ignore_eos=True), timeout=5)
        await read(call)
        return freed
    return time.monotonic() - began


STAGES = ["queue", "prefill", "decode"]


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancelled_call_frees_its_place(server: ServerProcess, watcher: Peer, stage: str) -> None:
    async with Peer(server.address) as peer:
        model, call = await reach(stage, peer, watcher)
        call.cancel()  # type: ignore[attr-defined]
        print(f"{stage}: free after {await is_free(stage, model, watcher) * 1000:.0f} ms")
        await leave(peer)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_deadline_frees_its_place(server: ServerProcess, watcher: Peer, stage: str) -> None:
    async with Peer(server.address) as peer:
        model, call = await reach(stage, peer, watcher, timeout=0.6)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            async for _ in call:  # type: ignore[attr-defined]
                pass
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await is_free(stage, model, watcher)
        await leave(peer)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_closed_channel_frees_its_place(server: ServerProcess, watcher: Peer, stage: str) -> None:
    peer = Peer(server.address)
    async with peer:
        model, _ = await reach(stage, peer, watcher)
    await is_free(stage, model, watcher)
    await leave(peer)


CLIENT = """
import sys
from inferd.v1 import generation_pb2 as gen, inference_service_pb2 as inf, inference_service_pb2_grpc as stubs
import grpc
model, count, kind, address = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
channel = grpc.insecure_channel(address)
request = inf.StreamGenerateRequest(model=model, stop=gen.StopOptions(max_tokens=1000000, ignore_eos=True))
if count:
    request.tokens.ids.extend([9] * count)
else:
    request.prompt = "go on"
call = stubs.InferenceServiceStub(channel).StreamGenerate(request)
for response in call:
    if response.WhichOneof("event") == kind:
        print("there", flush=True)
"""


@pytest.mark.parametrize("stage", STAGES)
async def test_a_killed_client_process_frees_its_place(server: ServerProcess, watcher: Peer, stage: str) -> None:
    holding = watcher.inference.StreamGenerate(endless("one"))
    if stage == "queue":
        await read_until(holding, "delta")
    model, count, kind = {
        "queue": ("one", 0, "never"),
        "prefill": ("deep", PREFILL_TOKENS, "started"),
        "decode": ("many", 0, "delta"),
    }[stage]
    if stage != "queue":
        holding.cancel()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, model, str(count), kind, server.address, stdout=asyncio.subprocess.PIPE
    )
    try:
        if stage == "queue":
            await watcher.wait_for_model("one", lambda found: found.waiting_requests == 1, 20)
        else:
            assert client.stdout is not None
            assert await asyncio.wait_for(client.stdout.readline(), 30) == b"there\n"
    finally:
        os.kill(client.pid, signal.SIGKILL)
        await client.wait()
    await is_free(stage, model, watcher)
    holding.cancel()


async def leave(peer: Peer) -> None:
    """End what `reach` put ahead of a queued request."""
    holding = getattr(peer, "holding", None)
    if holding is not None:
        holding.cancel()


async def test_two_hundred_random_cancels_leave_nothing_running_or_waiting(
    server: ServerProcess, watcher: Peer
) -> None:
    source = random.Random(3)
    peers = [Peer(server.address) for _ in range(4)]

    async def one(number: int) -> None:
        peer, model = source.choice(peers), source.choice(["one", "many", "many"])
        prompt = {"ids": [9] * source.choice([1, 3000])}
        if number % 4 == 0:
            call = peer.inference.Generate(
                unary(model, ignore_eos=True, max_tokens=1_000_000, **prompt), timeout=source.uniform(0.001, 0.8)
            )
            error = await failure_of(call)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return
        request = endless(model, coalesce_ms=source.choice([0, 10]), waiting_events=source.random() < 0.5)
        call = peer.inference.StreamGenerate(request)
        try:
            async with asyncio.timeout(source.uniform(0, 0.8)):
                await read(call)
        except TimeoutError:
            call.cancel()

    async with asyncio.timeout(60):
        for start in range(0, 200, 40):
            await asyncio.gather(*(one(number) for number in range(start, start + 40)))
    for peer in peers:
        await peer.channel.close()
    for name in ("one", "many"):
        await watcher.wait_until_idle(name, FREE_SECONDS)
    answer = await watcher.inference.Generate(unary("one", prompt="x", max_tokens=2, ignore_eos=True), timeout=5)
    assert answer.usage.completion_tokens == 2
    assert not [line for line in server.log if "Traceback" in line or "exception" in line.lower()]


async def test_cancel_generation_ends_a_request_of_another_connection(server: ServerProcess, watcher: Peer) -> None:
    async with Peer(server.address) as peer:
        call = peer.inference.StreamGenerate(endless("one", request_id="mine"))
        answer = await read_until(call, "delta")
        queued = peer.inference.StreamGenerate(endless("one", request_id="behind"))
        whole = asyncio.ensure_future(
            failure_of(peer.inference.Generate(unary("one", prompt="x", request_id="whole", max_tokens=10)))
        )
        await watcher.wait_for_model("one", lambda model: model.waiting_requests == 2)
        for request_id in ("behind", "whole", "mine"):
            assert await cancel(watcher, request_id)
        failure = (await read(call, answer)).failure
        assert (failure.code(), reason_of(failure)) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_REQUEST")
        facts = facts_of(failure)
        assert facts["request_id"] == "mine"
        assert int(facts["last_sequence"]) == answer.last_sequence
        assert int(facts["completion_tokens"]) >= answer.deltas[-1].completion_tokens > 0
        for failure in ((await read(queued)).failure, await whole):
            assert reason_of(failure) == "CANCELLED_BY_REQUEST"
            assert "completion_tokens" not in facts_of(failure), "it never started"
        assert not await cancel(watcher, "mine"), "it is over"
        assert not await cancel(watcher, "never-there")


async def cancel(peer: Peer, request_id: str) -> bool:
    answer = await peer.inference.CancelGeneration(inf.CancelGenerationRequest(request_id=request_id), timeout=5)
    return bool(answer.cancelled)


async def test_cancelling_nothing_in_particular_is_refused(watcher: Peer) -> None:
    error = await failure_of(watcher.inference.CancelGeneration(inf.CancelGenerationRequest()))
    assert reason_of(error) == "INVALID_PARAMETER"


async def test_an_id_in_flight_is_taken_and_free_again_afterwards(server: ServerProcess, watcher: Peer) -> None:
    async with Peer(server.address) as peer:
        call = peer.inference.StreamGenerate(endless("many", request_id="twice"))
        await read_until(call, "started")
        error = await failure_of(watcher.inference.Generate(unary("many", prompt="x", request_id="twice")))
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE")
        assert facts_of(error) == {"request_id": "twice"}
        assert (await watcher.model("many")).running_requests == 1, "the first goes on"
        call.cancel()
        await watcher.wait_until_idle("many")
        answer = await watcher.inference.Generate(unary("many", prompt="x", request_id="twice", max_tokens=1))
        assert answer.request_id == "twice"


async def test_a_prompt_being_tokenized_is_left_at_once_and_its_id_is_free(
    server: ServerProcess, watcher: Peer
) -> None:
    async with Peer(server.address) as peer:
        for _ in range(3):
            call = peer.inference.StreamGenerate(streamed("many", prompt="word " * 100_000, request_id="long"))
            await asyncio.sleep(0.02)
            call.cancel()
        await asyncio.sleep(0.05)
        answer = await watcher.inference.Generate(unary("many", prompt="x", request_id="long", max_tokens=1), timeout=5)
        assert answer.request_id == "long"


async def test_a_forced_unload_ends_what_runs_and_what_waits(server: ServerProcess, watcher: Peer) -> None:
    async with Peer(server.address) as peer:
        call = peer.inference.StreamGenerate(endless("one", request_id="running"))
        answer = await read_until(call, "delta")
        queued = peer.inference.StreamGenerate(endless("one"))
        await watcher.wait_for_model("one", lambda model: model.waiting_requests == 1)
        unloaded = await watcher.models.UnloadModel(
            mod.UnloadModelRequest(name="one", mode=mod.UNLOAD_MODE_FORCE), timeout=10
        )
        assert unloaded.model.state == mod.MODEL_STATE_UNLOADED
        failure = (await read(call, answer)).failure
        assert (failure.code(), reason_of(failure)) == (grpc.StatusCode.ABORTED, "MODEL_UNLOADED")
        facts = facts_of(failure)
        assert {"completion_tokens", "last_sequence", "request_id"} <= set(facts)
        assert facts["request_id"] == "running"
        failure = (await read(queued)).failure
        assert reason_of(failure) == "MODEL_UNLOADED"
        again = await watcher.inference.Generate(unary("one", prompt="x", max_tokens=2, ignore_eos=True), timeout=10)
        assert again.model.load_generation == 2
