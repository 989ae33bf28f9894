"""What a server bounds: waiting requests, the time of a request, what a slow reader may hold."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_status import rpc_status

from support.calls import Peer, endless, failure_of, read, read_until, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.wire import error_details, facts_of, reason_of

MIB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Iterator[ServerProcess]:
    """`one` and `other` decode one request at a time; three may wait for `one`, four in all; 3 s for each request."""
    folder = tmp_path_factory.mktemp("limits")
    single = {"path": endless_model, "preload": True, "continuous_batching": False}
    models = [{"name": "one", "max_queue": 3, **single}, {"name": "other", **single}]
    config = write_config(folder, models, budget_gb=1, server={"max_queue": 4, "request_timeout_s": 3})
    with serving(config) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as connection:
        yield connection
        for name in ("one", "other"):
            await connection.wait_until_idle(name)


async def test_a_full_queue_refuses_the_next_and_takes_it_when_there_is_room(peer: Peer) -> None:
    calls = [peer.inference.StreamGenerate(endless(name)) for name in ("one", "other")]
    for call in calls:
        await read_until(call, "started")
    waiting = []
    for number in range(3):
        waiting.append(peer.inference.StreamGenerate(endless("one")))
        await peer.wait_for_model("one", lambda model, n=number + 1: model.waiting_requests == n)  # type: ignore[misc]
    error = await failure_of(peer.inference.Generate(unary("one", prompt="x")))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert (facts_of(error)["queue_limit"], facts_of(error)["model"]) == ("3", "one")
    assert error_details(error)["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0

    waiting.append(peer.inference.StreamGenerate(endless("other")))
    await peer.wait_for_model("other", lambda model: model.waiting_requests == 1)
    error = await failure_of(peer.inference.Generate(unary("other", prompt="x")))
    assert (reason_of(error), facts_of(error)["queue_limit"]) == ("QUEUE_FULL", "4")

    waiting.pop(0).cancel()
    await peer.wait_for_model("one", lambda model: model.waiting_requests == 2)
    taken = peer.inference.StreamGenerate(endless("other"))
    await peer.wait_for_model("other", lambda model: model.waiting_requests == 2)
    for call in (*calls, *waiting, taken):
        call.cancel()


async def test_a_full_queue_of_one_model_refuses_nobody_who_finds_a_free_row_of_another(
    tmp_path: Path, endless_model: Path
) -> None:
    single = {"path": endless_model, "preload": True, "continuous_batching": False}
    models = [{"name": "busy", **single}, {"name": "idle", **single}]
    config = write_config(tmp_path, models, budget_gb=1, server={"max_queue": 1})
    with serving(config) as started:
        started.wait_until_ready()
        async with Peer(started.address) as peer:
            calls = [peer.inference.StreamGenerate(endless("busy")) for _ in range(2)]
            await peer.wait_for_model("busy", lambda model: model.waiting_requests == 1)
            await peer.inference.Generate(unary("idle", prompt="x", max_tokens=1))
            error = await failure_of(peer.inference.Generate(unary("busy", prompt="x")))
            assert reason_of(error) == "QUEUE_FULL"
            for call in calls:
                call.cancel()


async def test_requests_that_find_a_place_at_once_do_not_count_as_waiting(peer: Peer) -> None:
    answers = [await peer.inference.Generate(unary("one", prompt="x", max_tokens=1)) for _ in range(10)]
    assert len(answers) == 10


async def test_a_request_that_runs_too_long_is_ended_with_its_counts(peer: Peer) -> None:
    began = time.monotonic()
    first = asyncio.ensure_future(read(peer.inference.StreamGenerate(endless("one", request_id="long"))))
    await peer.wait_for_model("one", lambda model: model.running_requests == 1)
    # Waiting does not count: the second has its own three seconds from its admission.
    second = asyncio.ensure_future(read(peer.inference.StreamGenerate(endless("one"))))
    answer = await first
    error = answer.failure
    assert 2.5 < time.monotonic() - began < 10
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.DEADLINE_EXCEEDED, "REQUEST_TIMEOUT")
    facts = facts_of(error)
    assert (facts["limit_ms"], facts["request_id"]) == ("3000", "long")
    # The last tokens may be bytes of a character that was not whole yet.
    assert 0 <= int(facts["completion_tokens"]) - answer.deltas[-1].completion_tokens < 4
    assert int(facts["last_sequence"]) == answer.last_sequence
    assert reason_of((await second).failure) == "REQUEST_TIMEOUT"
    assert time.monotonic() - began > 5.5
    # The client's own deadline has no details: that is how the two are told apart.
    error = await failure_of(
        peer.inference.Generate(unary("one", prompt="x", ignore_eos=True, max_tokens=10**6), timeout=0.3)
    )
    assert (error.code(), rpc_status.from_call(error)) == (grpc.StatusCode.DEADLINE_EXCEEDED, None)


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Iterator[ServerProcess]:
    """`many` decodes everything together."""
    folder = tmp_path_factory.mktemp("wide")
    with serving(
        write_config(folder, [{"name": "many", "path": endless_model, "preload": True}], budget_gb=1)
    ) as started:
        started.wait_until_ready()
        yield started


async def test_a_reader_that_never_reads_holds_bounded_memory_and_slows_nobody(wide_server: ServerProcess) -> None:
    tokens = 1500
    neighbour = streamed("many", prompt="x", ignore_eos=True, max_tokens=tokens)
    async with Peer(wide_server.address) as peer:
        await read(peer.inference.StreamGenerate(neighbour))  # warm
        before = wide_server.rss_nbytes
        # Without the probe the client's window stays small, like that of a client that is stopped.
        slow = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(wide_server.address, options=slow) as channel:
            call = channel.unary_stream(
                "/inferd.v1.InferenceService/StreamGenerate",
                request_serializer=lambda message: message.SerializeToString(),
            )(endless("many", top_logprobs=20, return_ids=True))
            messages = aiter(call)
            await anext(messages)
            began = time.monotonic()
            answers = await asyncio.gather(*(read(peer.inference.StreamGenerate(neighbour)) for _ in range(3)))
            print(f"3 x {tokens} tokens beside a reader that reads nothing: {time.monotonic() - began:.1f} s")
            assert all(answer.end.usage.completion_tokens == tokens for answer in answers)
            model = await peer.wait_for_model("many", lambda found: found.running_requests == 0, 20)
            grown = (wide_server.rss_nbytes - before) / MIB
            print(f"memory grown by {grown:.0f} MiB")
            assert model.running_requests == 0
            assert grown < 150
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                async for _ in messages:
                    pass
        assert (ended.value.code(), reason_of(ended.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
        assert int(facts_of(ended.value)["completion_tokens"]) > 0
        assert await peer.check("readiness")


async def test_a_slow_reader_gets_every_token_in_fewer_messages(wide_server: ServerProcess) -> None:
    async with Peer(wide_server.address) as peer:
        wanted = {"prompt": "x", "ignore_eos": True, "max_tokens": 2000, "return_ids": True}
        whole = await peer.inference.Generate(unary("many", **wanted))
        call = peer.inference.StreamGenerate(streamed("many", coalesce_ms=0, **wanted))
        answer = await read_until(call, "started")
        await asyncio.sleep(1)
        await read(call, answer)
        assert answer.token_ids == list(whole.token_ids)
        assert answer.text == whole.text
