"""The demo's large models are real: one says Paris through the socket, the other knows what is alike."""

from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd_client import AsyncClient
from support.calls import Peer, read, streamed, unary
from support.demo_folder import PREPARING_SECONDS, demo_folder
from support.numpy_bert import NumpyBert
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


# --- the embedder -------------------------------------------------------------------------------------------------

PAIRS = [
    ("The new movie is awesome", "The new movie is so great", 0.894),
    ("The cat sits outside", "The cat plays in the garden", 0.679),
    ("I love pasta", "Do you like pizza?", 0.510),
]
PUBLISHED = [0.0676569, 0.0634959, 0.0487131]
"""The first numbers of "This is an example sentence", as the model's makers publish them."""


async def test_the_embedder_knows_what_is_alike_and_reproduces_published_numbers(demo_server: ServerProcess) -> None:
    texts = [text for *pair, _ in PAIRS for text in pair]
    async with AsyncClient(demo_server.address) as client:
        embedding = await client.embed("minilm", [*texts, "This is an example sentence"])
    vectors = np.array(embedding.vectors)
    assert embedding.dimensions == 384
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for i, (*_, cosine) in enumerate(PAIRS):
        assert vectors[2 * i] @ vectors[2 * i + 1] == pytest.approx(cosine, abs=0.001)
    np.testing.assert_allclose(vectors[-1][:3], PUBLISHED, atol=1e-6)


async def test_the_embedders_vectors_are_those_of_an_independent_bert(
    demo_server: ServerProcess, peer: Peer, pytestconfig: pytest.Config
) -> None:
    reference = NumpyBert(demo_folder(pytestconfig) / "minilm")
    texts = ["I love pasta", "Ünïcödé, 日本語 & emoji 🎬!", "long " * 300]
    ids = [list((await peer.inference.Tokenize(tokenize(text))).token_ids) for text in texts]
    async with AsyncClient(demo_server.address) as client:
        together = await client.embed("minilm", texts, truncation="end")
        alone = [(await client.embed("minilm", [text], truncation="end")).vectors[0] for text in texts]
    assert together.truncated_texts == (2,)
    wanted = [reference.vector(each if len(each) <= 256 else [*each[:255], each[-1]]) for each in ids]
    np.testing.assert_allclose(together.vectors, wanted, atol=1e-5)
    np.testing.assert_allclose(together.vectors, alone, atol=1e-6)


def tokenize(text: str) -> inf.TokenizeRequest:
    return inf.TokenizeRequest(model="minilm", prompt=text, return_ids=True)
