"""The demo's chat model is real: asked for the capital of France through the socket, it says Paris."""

from collections.abc import AsyncIterator, Iterator

import pytest

from inferd.v1 import generation_pb2 as gen
from inferd_client import AsyncClient
from support.calls import Peer, read, streamed, unary
from support.demo_folder import PREPARING_SECONDS, demo_folder
from support.servers import ServerProcess

QUESTION = [("user", "What is the capital of France?")]

pytestmark = pytest.mark.timeout(PREPARING_SECONDS)


@pytest.fixture(scope="module")
def demo_server(pytestconfig: pytest.Config) -> Iterator[ServerProcess]:
    """`inferd serve --demo`: the model of $INFERD_DEMO_DIR or of this checkout; else it prepares one, once."""
    folder = demo_folder(pytestconfig)
    arguments = ["serve", "--demo", "--demo-dir", str(folder), "--listen", "127.0.0.1:0", "--drain-delay-s", "0"]
    server = ServerProcess(arguments)
    try:
        server.wait_until_listening(PREPARING_SECONDS)
        server.wait_until_ready()
        yield server
    finally:
        server.close()


@pytest.fixture
async def peer(demo_server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(demo_server.address) as connection:
        yield connection


async def test_it_says_paris_streamed_and_whole(peer: Peer) -> None:
    wanted = {"chat": QUESTION, "max_tokens": 24, "return_ids": True}
    answer = await read(peer.inference.StreamGenerate(streamed("smollm2", **wanted)))
    assert "Paris" in answer.text
    assert answer.end.finish_reason == gen.FINISH_REASON_EOS
    whole = await peer.inference.Generate(unary("demo", **wanted))
    assert (whole.text, list(whole.token_ids)) == (answer.text, answer.token_ids)
    assert "<|im_end|>" not in whole.text


async def test_it_says_paris_to_our_own_client_with_its_own_defaults(demo_server: ServerProcess) -> None:
    async with (
        AsyncClient(demo_server.address) as client,
        client.stream("smollm2", messages=QUESTION, max_tokens=24) as answer,
    ):
        assert "Paris" in "".join([text async for text in answer.text()])


async def test_it_stops_at_a_sequence_of_real_words(peer: Peer) -> None:
    wanted = {"chat": QUESTION, "max_tokens": 24, "sequences": ["is Par"]}
    answer = await read(peer.inference.StreamGenerate(streamed("smollm2", coalesce_ms=0, **wanted)))
    assert answer.end.matched_stop == "is Par"
    assert answer.text == "The capital of France "
