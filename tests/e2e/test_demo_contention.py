"""The demo's three models over sockets: chat and embedder take turns under every strategy; the third stays."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd_server import demo
from support import calls
from support.calls import failure_of
from support.contention import Answer, Client, connected
from support.demo_folder import PREPARING_SECONDS, demo_folder
from support.servers import ServerProcess, serving
from support.tiny_vlm import QUESTION, encoded, image
from support.wire import facts_of, reason_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(PREPARING_SECONDS)]

STRATEGIES = ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
SECONDS = 120.0
"""Longest wait for anything here: the chat model takes seconds to load on a busy machine."""
TEXTS = [f"Sentence number {i} of a long story about a cat and a movie, told in many words." for i in range(150)]


@pytest.fixture(scope="module")
def server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The demo as `serve --demo` has it, but that requests may ask for every strategy."""
    folder = demo_folder(pytestconfig)
    demo.prepare(folder, lambda *call: None)
    document = demo.demo_document(folder)
    document["server"] = {"listen": "127.0.0.1:0", "drain_delay_s": 0}
    document["manager"] |= {"request_overrides": STRATEGIES, "min_residency_s": 0, "drain_busy_after_s": 0}
    config = tmp_path_factory.mktemp("demo") / "inferd.yaml"
    config.write_text(yaml.safe_dump(document))
    with serving(config) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """A client; nothing is left behind, and the ledger is exact all along."""
    async with connected(server) as client:
        await client.load("smollm2", SECONDS)
        yield client


def contention(strategy: str, **seconds: float) -> gen.ContentionPolicy:
    policy = gen.ContentionPolicy(strategy=gen.ContentionStrategy.Value(f"CONTENTION_STRATEGY_{strategy.upper()}"))
    for name, value in seconds.items():
        getattr(policy, name).FromNanoseconds(int(value * 1e9))
    return policy


def embed(client: Client, *texts: str, strategy: str = "wait", **seconds: float) -> Any:
    scheduling = gen.SchedulingOptions(contention=contention(strategy, **seconds))
    return client.inference.Embed(inf.EmbedRequest(model="minilm", texts=texts, scheduling=scheduling), timeout=SECONDS)


def chat(client: Client, tokens: int = 200, **options: Any) -> Answer:
    """A story that goes on until it is ended, or for so many tokens."""
    return client.ask("smollm2", tokens, prompt="Once upon a time", **options)


async def is_named(client: Client, colour: str) -> bool:
    request = calls.unary("colours", chat=[("user", [encoded(image(colour)), QUESTION])])
    return str((await client.inference.Generate(request, timeout=SECONDS)).text) == colour


def vectors_of(answer: inf.EmbedResponse) -> np.ndarray:
    return np.array([np.frombuffer(vector, dtype="<f4") for vector in answer.vectors_f32le])


async def test_an_idle_chat_model_gives_way_to_the_embedder_and_comes_back(client: Client) -> None:
    assert await is_named(client, "red")
    assert (await client.states()) == {"smollm2": "LOADED", "minilm": "UNLOADED", "colours": "LOADED"}
    assert (await embed(client, "x", strategy="fail")).dimensions == 384
    assert (await client.states()) == {"smollm2": "UNLOADED", "minilm": "LOADED", "colours": "LOADED"}
    assert (await chat(client, 4, contention=contention("fail")).result(SECONDS)).finished.usage.completion_tokens == 4
    assert (await client.states()) == {"smollm2": "LOADED", "minilm": "UNLOADED", "colours": "LOADED"}
    assert await is_named(client, "blue")


async def test_fail_is_told_at_once_that_the_chat_model_is_busy(client: Client) -> None:
    story = await chat(client, 4000).tokens(1)
    error = await failure_of(embed(client, "x", strategy="fail"))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "CAPACITY_EXHAUSTED")
    assert facts_of(error)["blocking_models"] == "smollm2"
    assert await is_named(client, "green")  # it fits beside it
    assert not story.is_over


async def test_wait_waits_for_the_end_of_the_chat(client: Client) -> None:
    story = await chat(client, 30).tokens(1)
    assert (await embed(client, "x", strategy="wait")).dimensions == 384
    assert story.is_over
    assert (await story.result()).finished.preemptions == 0


async def test_wait_then_fail_gives_up_in_time(client: Client) -> None:
    story = await chat(client, 4000).tokens(1)
    error = await failure_of(embed(client, "x", strategy="wait_then_fail", wait_timeout=0.5))
    assert reason_of(error) == "WAIT_TIMEOUT"
    assert int(facts_of(error)["waited_ms"]) >= 500
    assert not story.is_over


@pytest.mark.parametrize("strategy", ["preempt", "wait_then_preempt"])
async def test_preemption_interrupts_the_chat_which_goes_on_afterwards_as_if_nothing_had_happened(
    client: Client, strategy: str
) -> None:
    alone = await chat(client, 60).result(SECONDS)
    story = await chat(client, 60).tokens(3)
    seconds = {"preempt_after": 0.2} if strategy == "wait_then_preempt" else {}
    assert (await embed(client, "x", strategy=strategy, **seconds)).dimensions == 384
    resumed = await story.result(SECONDS)
    assert resumed.finished.preemptions == 1
    assert resumed.ids == alone.ids


async def test_a_preempted_embed_goes_on_with_the_vectors_it_has(client: Client) -> None:
    call = embed(client, *TEXTS)
    async with asyncio.timeout(SECONDS):
        while (await client.model("minilm")).running_requests == 0:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    assert (await chat(client, 2, contention=contention("preempt")).result(SECONDS)).finished is not None
    answer = await call
    assert answer.preemptions == 1
    whole = await embed(client, *TEXTS)
    np.testing.assert_allclose(vectors_of(answer), vectors_of(whole), atol=1e-6)
