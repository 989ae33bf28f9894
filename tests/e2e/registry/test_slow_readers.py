"""A reader that does not read holds up nobody but itself: its model can be preempted and unloaded all the same."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from support.contention import Client, Output, policy, request
from support.servers import ServerProcess
from support.wire import facts_of, reason_of

PREEMPT = policy("preempt")


@pytest.fixture
async def lazy(one_place: ServerProcess) -> AsyncIterator[Client]:
    """A client whose connection takes 64 KiB ahead of what is read, and no more."""
    client = Client(one_place.address, **{"http2.bdp_probe": 0, "http2.lookahead_bytes": 65_535})
    yield client
    await client.close()


async def stalled(client: Client, tokens: int) -> list[Any]:
    """Streams that were read up to their first token, and so full now that the server can't write any more."""
    calls = [client.inference.StreamGenerate(request("a", tokens, logprobs=20)) for _ in range(8)]
    for call in calls:
        while (await call.read()).WhichOneof("event") != "delta":
            pass
    await asyncio.sleep(2)  # their connection holds the messages of about 200 tokens
    return calls


async def rest_of(call: Any) -> Output:
    output = Output()
    while (message := await call.read()) is not grpc.aio.EOF:
        kind = message.WhichOneof("event")
        if kind == "delta":
            output.ids.extend(message.delta.token_ids)
        elif kind == "finished":
            output.finished = message.finished
    return output


async def test_a_preemption_waits_for_no_reader_and_the_reader_misses_nothing(client: Client, lazy: Client) -> None:
    alone = await client.answer("a", 600)
    calls = await stalled(lazy, 600)
    await client.ask("b", contention=PREEMPT).result(5)
    for output in await asyncio.gather(*map(rest_of, calls)):
        assert output.ids == alone.ids[-len(output.ids) :]
        assert len(output.ids) > 590
        assert output.finished.preemptions == 1


async def test_a_forced_unload_waits_for_no_reader(client: Client, lazy: Client) -> None:
    calls = await stalled(lazy, 3000)
    await asyncio.wait_for(client.unload("a", "FORCE"), 5)
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(call)
        assert reason_of(caught.value) == "MODEL_UNLOADED"
        assert int(facts_of(caught.value)["completion_tokens"]) > 10
