"""Embed over a real socket: right vectors, typed refusals, and an embedder that contends like any other model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fakes.faulty_server import FAULTS_OF_DIMENSIONS, ROW_FAILS, STEP_BREAKS_ENGINE, STEP_RAISES
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support import tiny_embedder
from support.calls import failure_of
from support.contention import Client, connected, serving_with_faults
from support.numpy_bert import NumpyBert
from support.servers import ServerProcess, write_config
from support.tiny_embedder import MAX_TOKENS, WIDTH
from support.wire import facts_of, fields_of, reason_of

STRATEGIES = ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
DIMENSIONS = {fault: dimensions for dimensions, fault in FAULTS_OF_DIMENSIONS.items()}
PROMPTS = {"query": "query: ", "document": "document: "}
LONG_TEXT = "a " * 50
MANY = 1500
"""Texts of 52 tokens: nine in a batch, so that they take seconds with STEP_SECONDS each."""
STEP_SECONDS = "0.02"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_embedder.build(tmp_path_factory.mktemp("embedder") / "emb", prompts=PROMPTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path, tiny_model: Path) -> Iterator[ServerProcess]:
    """Room for one of `emb` and `chat`; `narrow` runs one request at a time, and one may wait."""
    models = [
        {"name": "emb", "path": folder, "aliases": ["embedder"], "estimated_memory_gb": 1},
        {"name": "chat", "path": tiny_model, "estimated_memory_gb": 1},
        {"name": "narrow", "path": folder, "estimated_memory_gb": 0.1, "max_batch_size": 1, "max_queue": 1},
        {"name": "wide", "path": tiny_embedder.build(folder.parent / "wide", hidden=128), "estimated_memory_gb": 0.1},
    ]
    config = write_config(
        tmp_path_factory.mktemp("server"),
        models,
        budget_gb=1.5,
        manager={"request_overrides": STRATEGIES, "drain_busy_after_s": 0},
        server={"max_message_mib": 2},
    )
    with serving_with_faults(config, INFERD_TEST_STEP_SECONDS=STEP_SECONDS) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """A client; nothing is left behind, and the ledger is exact all along."""
    async with connected(server) as client:
        yield client


def embed(client: Client, *texts: str, model: str = "emb", timeout: float = 60, **fields: Any) -> Any:
    strategy = fields.pop("strategy", None)
    if strategy:
        contention = gen.ContentionPolicy(strategy=gen.ContentionStrategy.Value(f"CONTENTION_STRATEGY_{strategy}"))
        fields["scheduling"] = gen.SchedulingOptions(contention=contention)
    return client.inference.Embed(inf.EmbedRequest(model=model, texts=texts, **fields), timeout=timeout)


def vectors_of(answer: inf.EmbedResponse) -> np.ndarray:
    return np.array([np.frombuffer(vector, dtype="<f4") for vector in answer.vectors_f32le])


async def ids_of(client: Client, text: str) -> list[int]:
    request = inf.TokenizeRequest(model="emb", prompt=text, return_ids=True)
    return list((await client.inference.Tokenize(request)).token_ids)


async def until_running(client: Client, model: str = "emb") -> None:
    await until(client, lambda state: state.running_requests > 0, model)


async def until_waiting(client: Client, model: str = "emb") -> None:
    await until(client, lambda state: state.waiting_requests > 0, model)


async def until(client: Client, claim: Callable[[mod.Model], bool], model: str) -> None:
    async with asyncio.timeout(20):
        while not claim(await client.model(model)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


# --- vectors ------------------------------------------------------------------------------------------------------


async def test_vectors_are_those_of_an_independent_bert(client: Client, folder: Path) -> None:
    texts = ["the cat sat on the mat", "A film!", "the movie", "x"]
    answer = await embed(client, *texts)
    reference = NumpyBert(folder)
    ids = [await ids_of(client, text) for text in texts]
    wanted = [reference.vector(each) for each in ids]
    np.testing.assert_allclose(vectors_of(answer), wanted, atol=1e-5)
    assert answer.dimensions == WIDTH
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert (answer.model.name, answer.model.load_generation > 0) == ("emb", True)
    assert answer.request_id
    assert list(answer.truncated_texts) == []
    plain = await embed(client, *texts, normalize=False, dimensions=5, model="embedder")
    assert plain.dimensions == 5
    wanted = [reference.vector(each, normalize=False)[:5] for each in ids]
    np.testing.assert_allclose(vectors_of(plain), wanted, atol=1e-5)


async def test_a_text_that_is_too_long_is_refused_with_its_index_or_cut_as_asked(client: Client, folder: Path) -> None:
    long = "a " * 100
    error = await failure_of(embed(client, "x", long, "y", long + "b"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(error) == "PROMPT_TOO_LONG"
    assert fields_of(error) == ["texts[1]", "texts[3]"]
    assert facts_of(error) == {"prompt_tokens": "103", "context_length": str(MAX_TOKENS), "texts": "2"}
    cut = await embed(client, "x", long, truncation=inf.TEXT_TRUNCATION_END)
    assert list(cut.truncated_texts) == [1]
    ids = await ids_of(client, long)
    kept = [*ids[: MAX_TOKENS - 1], ids[-1]]
    np.testing.assert_allclose(vectors_of(cut)[1], NumpyBert(folder).vector(kept), atol=1e-5)
    assert cut.usage.prompt_tokens == len(await ids_of(client, "x")) + MAX_TOKENS


async def test_a_text_far_beyond_any_context_costs_no_more_than_its_beginning(client: Client) -> None:
    error = await failure_of(embed(client, "a b " * 200_000))
    assert reason_of(error) == "PROMPT_TOO_LONG"
    assert int(facts_of(error)["prompt_tokens"]) < 70_000
    cut = await embed(client, "a b " * 200_000, "a b " * 40, truncation=inf.TEXT_TRUNCATION_END)
    assert list(cut.truncated_texts) == [0, 1]
    np.testing.assert_array_equal(*vectors_of(cut))


async def test_a_prompt_of_the_model_goes_before_each_text(client: Client) -> None:
    by_name = await embed(client, "the cat", prompt_name="query")
    by_hand = await embed(client, PROMPTS["query"] + "the cat")
    np.testing.assert_allclose(vectors_of(by_name), vectors_of(by_hand), atol=1e-6)
    error = await failure_of(embed(client, "x", prompt_name="other"))
    assert fields_of(error) == ["prompt_name"]
    assert "document, query" in error.details()


async def test_4096_texts_come_back_in_order_in_one_answer(client: Client) -> None:
    texts = [" ".join(tiny_embedder.WORDS[: i % 7 + 1]) for i in range(4096)]
    answer = await embed(client, *texts)
    vectors = vectors_of(answer)
    assert vectors.shape == (4096, WIDTH)
    few = vectors_of(await embed(client, *texts[:7]))
    np.testing.assert_allclose(vectors, few[[i % 7 for i in range(4096)]], atol=1e-6)


async def test_the_list_tells_what_an_embedder_can_do(client: Client) -> None:
    model = await client.model("emb")
    assert list(model.capabilities) == [mod.MODEL_CAPABILITY_EMBED]
    assert model.context_length == MAX_TOKENS
    assert model.architecture == "bert"


# --- refusals -----------------------------------------------------------------------------------------------------


async def test_every_bad_field_is_named_at_once(client: Client) -> None:
    bad: dict[str, Any] = {"dimensions": WIDTH + 1, "prompt_name": "x", "truncation": 7, "request_id": "a b"}
    error = await failure_of(embed(client, "x", "", scheduling=gen.SchedulingOptions(priority=1000), **bad))
    assert reason_of(error) == "INVALID_PARAMETER"
    wanted = {"request_id", "texts[1]", "truncation", "scheduling.priority", "dimensions", "prompt_name"}
    assert set(fields_of(error)) == wanted
    assert fields_of(await failure_of(embed(client))) == ["texts"]
    assert fields_of(await failure_of(embed(client, *["x"] * 4097))) == ["texts"]


async def test_an_answer_that_no_message_holds_is_refused_before_any_work(client: Client) -> None:
    error = await failure_of(embed(client, *["x"] * 4096, model="wide"))
    assert fields_of(error) == ["texts"]
    assert "4096 vectors of 520 bytes" in error.details()
    answer = await embed(client, *["x"] * 4096, model="wide", dimensions=64)
    assert len(answer.vectors_f32le) == 4096


async def test_each_model_does_what_it_can(client: Client) -> None:
    error = await failure_of(embed(client, "x", model="chat"))
    assert (reason_of(error), facts_of(error)["capability"]) == ("CAPABILITY_MISSING", "embed")
    error = await failure_of(client.inference.Generate(inf.GenerateRequest(model="emb", prompt="x")))
    assert (reason_of(error), facts_of(error)["capability"]) == ("CAPABILITY_MISSING", "generate")
    chat = gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(text="x")])])
    error = await failure_of(client.inference.Generate(inf.GenerateRequest(model="emb", chat=chat)))
    assert (reason_of(error), facts_of(error)["capability"]) == ("CAPABILITY_MISSING", "chat")


async def test_no_more_may_wait_than_the_model_allows(client: Client) -> None:
    texts = [LONG_TEXT] * MANY
    running = embed(client, *texts, model="narrow")
    await until_running(client, "narrow")
    waiting = embed(client, "x", model="narrow")
    await until_waiting(client, "narrow")
    error = await failure_of(embed(client, "y", model="narrow"))
    assert (reason_of(error), facts_of(error)["queue_limit"]) == ("QUEUE_FULL", "1")
    running.cancel()
    assert len((await waiting).vectors_f32le) == 1


# --- the end of a request -----------------------------------------------------------------------------------------


async def test_a_client_that_leaves_stops_the_batches_that_are_left(client: Client) -> None:
    call = embed(client, *[LONG_TEXT] * MANY)
    await until_running(client)
    call.cancel()
    await client.settled()
    assert len((await embed(client, "x")).vectors_f32le) == 1


async def test_it_can_be_cancelled_by_its_id_which_is_its_own_while_it_runs(client: Client) -> None:
    call = embed(client, *[LONG_TEXT] * MANY, request_id="long-one")
    await until_running(client)
    error = await failure_of(embed(client, "x", request_id="long-one"))
    assert reason_of(error) == "REQUEST_ID_IN_USE"
    assert await client.cancel("long-one")
    error = await failure_of(call)
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_REQUEST")
    assert not await client.cancel("long-one")


async def test_a_deadline_ends_it(client: Client) -> None:
    await embed(client, "x")
    error = await failure_of(embed(client, *[LONG_TEXT] * MANY, timeout=0.5))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await client.settled()


async def test_small_requests_are_not_held_up_by_a_large_one(client: Client) -> None:
    call = embed(client, *[LONG_TEXT] * MANY)
    await until_running(client)
    for text in ("the cat", LONG_TEXT):
        await embed(client, text)
    assert not call.done()
    call.cancel()


async def test_an_unload_by_force_ends_it(client: Client) -> None:
    call = embed(client, *[LONG_TEXT] * MANY)
    await until_running(client)
    await client.unload("emb", "FORCE")
    error = await failure_of(call)
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.ABORTED, "MODEL_UNLOADED")


# --- failures -----------------------------------------------------------------------------------------------------


async def test_a_failed_step_ends_its_own_requests_and_the_model_goes_on(client: Client) -> None:
    good = await embed(client, "x")
    error = await failure_of(embed(client, *[LONG_TEXT] * 100, dimensions=DIMENSIONS[STEP_RAISES]))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    assert "secret" not in error.details()
    again = await embed(client, "x")
    assert again.model.load_generation == good.model.load_generation
    assert again.vectors_f32le == good.vectors_f32le


async def test_a_request_that_fails_alone_leaves_its_neighbours_in_peace(client: Client) -> None:
    neighbour = embed(client, *[LONG_TEXT] * 100)
    await until_running(client)
    error = await failure_of(embed(client, *[LONG_TEXT] * 100, dimensions=DIMENSIONS[ROW_FAILS]))
    assert reason_of(error) == "ENGINE_FAILED"
    assert len((await neighbour).vectors_f32le) == 100


async def test_an_engine_that_breaks_fails_the_model_which_loads_again_later(client: Client) -> None:
    error = await failure_of(embed(client, *[LONG_TEXT] * 100, dimensions=DIMENSIONS[STEP_BREAKS_ENGINE]))
    assert reason_of(error) == "ENGINE_FAILED"
    await client.until_state("emb", "FAILED")
    await client.load("emb")
    assert len((await embed(client, "x")).vectors_f32le) == 1


# --- contention ---------------------------------------------------------------------------------------------------


async def test_a_preempted_embed_goes_on_with_the_vectors_it_has(client: Client) -> None:
    texts = [f"{LONG_TEXT} {i}" for i in range(200)]
    whole = await embed(client, *texts)
    call = embed(client, *texts)
    await until_running(client)
    await asyncio.sleep(0.1)
    rival = await client.answer("chat", 2, contention=preempt())
    assert rival.finished is not None
    answer = await call
    assert answer.preemptions == 1
    assert answer.model.load_generation > whole.model.load_generation
    np.testing.assert_allclose(vectors_of(answer), vectors_of(whole), atol=1e-6)


async def test_an_embed_preempts_a_chat_which_is_resumed(client: Client) -> None:
    alone = await client.answer("chat", 60)
    chat = await client.ask("chat", 60).tokens(2)
    answer = await embed(client, "x", strategy="PREEMPT")
    assert len(answer.vectors_f32le) == 1
    output = await chat.result()
    assert output.finished.preemptions == 1
    assert output.ids == alone.ids


async def test_an_embed_that_may_not_wait_is_refused_while_another_model_is_busy(client: Client) -> None:
    await client.run("chat")
    error = await failure_of(embed(client, "x", strategy="FAIL"))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "CAPACITY_EXHAUSTED")
    assert facts_of(error)["blocking_models"] == "chat"
    waiting = embed(client, "x", strategy="WAIT", request_id="waits")
    await until_waiting(client)
    assert await client.cancel("waits")
    assert reason_of(await failure_of(waiting)) == "CANCELLED_BY_REQUEST"


def preempt() -> gen.ContentionPolicy:
    return gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_PREEMPT)
