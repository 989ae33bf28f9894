"""Rerank over a real socket: right scores in their order, typed refusals, and a reranker that contends like any other
model."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from inferd_client import AsyncClient
from support import tiny_embedder, tiny_reranker
from support.calls import failure_of
from support.contention import Client, connected, serving_with_faults
from support.numpy_bert import NumpyBert
from support.servers import ServerProcess, write_config
from support.tiny_embedder import MAX_TOKENS
from support.wire import facts_of, fields_of, reason_of

STRATEGIES = ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
QUERY = "the cat"
DOCUMENTS = ["a dog sat on the mat", "the movie", "A film!", "x", "cat cat cat"]
LONG_TEXT = "a " * 50
MANY = 1500
STEP_SECONDS = "0.02"
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reranker.build(tmp_path_factory.mktemp("reranker") / "rank")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path, tiny_model: Path) -> Iterator[ServerProcess]:
    """Room for one of `rank` and `chat` beside the small ones."""
    raw = tiny_reranker.build(folder.parent / "raw", **IDENTITY)
    models = [
        {"name": "rank", "path": folder, "aliases": ["ranker"], "estimated_memory_gb": 1},
        {"name": "chat", "path": tiny_model, "estimated_memory_gb": 1},
        {"name": "raw", "path": raw, "estimated_memory_gb": 0.1},
        {"name": "two", "path": tiny_reranker.build(folder.parent / "two", labels=2), "estimated_memory_gb": 0.1},
        {"name": "emb", "path": tiny_embedder.build(folder.parent / "emb"), "estimated_memory_gb": 0.1},
    ]
    config = write_config(
        tmp_path_factory.mktemp("server"),
        models,
        budget_gb=1.5,
        manager={"request_overrides": STRATEGIES, "drain_busy_after_s": 0},
    )
    with serving_with_faults(config, INFERD_TEST_STEP_SECONDS=STEP_SECONDS) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """A client; nothing is left behind, and the ledger is exact all along."""
    async with connected(server) as client:
        yield client


def rerank(
    client: Client, *documents: str, query: str = QUERY, model: str = "rank", timeout: float = 60, **fields: Any
) -> Any:
    request = inf.RerankRequest(model=model, query=query, documents=documents, **fields)
    return client.inference.Rerank(request, timeout=timeout)


def scores_of(answer: inf.RerankResponse) -> dict[int, float]:
    return {each.index: each.score for each in answer.results}


async def ids_of(client: Client, text: str) -> list[int]:
    request = inf.TokenizeRequest(model="rank", prompt=text, return_ids=True)
    return list((await client.inference.Tokenize(request)).token_ids)


async def pair_of(client: Client, query: str, document: str) -> tuple[list[int], int]:
    """[CLS] query [SEP] document [SEP], and where the document begins."""
    first, second = await ids_of(client, query), await ids_of(client, document)
    return [*first, *second[1:]], len(first)


async def until_running(client: Client, model: str = "rank") -> None:
    async with asyncio.timeout(20):
        while not (await client.model(model)).running_requests:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


def preempt() -> gen.ContentionPolicy:
    return gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_PREEMPT)


# --- scores -------------------------------------------------------------------------------------------------------


async def test_scores_are_those_of_an_independent_bert_the_best_first(client: Client, folder: Path) -> None:
    reference = NumpyBert(folder)
    pairs = [await pair_of(client, QUERY, document) for document in DOCUMENTS]
    logits = [reference.logit(ids, begin) for ids, begin in pairs]
    answer = await rerank(client, *DOCUMENTS, return_documents=True)
    wanted = sorted(range(len(DOCUMENTS)), key=lambda i: -logits[i])
    assert [each.index for each in answer.results] == wanted
    assert [each.document for each in answer.results] == [DOCUMENTS[i] for i in wanted]
    expected = [1 / (1 + math.exp(-logits[i])) for i in wanted]
    np.testing.assert_allclose([each.score for each in answer.results], expected, atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(ids) for ids, _ in pairs)
    assert (answer.model.name, answer.model.load_generation > 0) == ("rank", True)
    assert answer.request_id
    raw = scores_of(await rerank(client, *DOCUMENTS, model="raw"))
    np.testing.assert_allclose([raw[i] for i in range(len(logits))], logits, atol=1e-5)


async def test_a_document_has_the_score_it_has_alone_and_equal_ones_stay_in_order(client: Client) -> None:
    documents = [DOCUMENTS[i % 5] + " a" * (i % 7) for i in range(70)]
    together = scores_of(await rerank(client, *documents))
    for i in range(0, 35, 6):
        alone = scores_of(await rerank(client, documents[i]))
        assert math.isclose(alone[0], together[i], abs_tol=1e-5)
    answer = await rerank(client, "x", "the movie", "x", "x", model="ranker")
    assert [each.index for each in answer.results if each.index != 1] == [0, 2, 3]


async def test_only_the_best_come_if_asked(client: Client) -> None:
    whole = await rerank(client, *DOCUMENTS)
    best = await rerank(client, *DOCUMENTS, top_n=2)
    assert [each.index for each in best.results] == [each.index for each in whole.results][:2]
    assert best.usage == whole.usage
    assert len((await rerank(client, *DOCUMENTS, top_n=2**32 - 1)).results) == len(DOCUMENTS)


async def test_4096_documents_come_back_in_one_answer(client: Client) -> None:
    answer = await rerank(client, *(DOCUMENTS[i % 5] for i in range(4096)))
    assert len(scores_of(answer)) == 4096
    scores = [each.score for each in answer.results]
    assert scores == sorted(scores, reverse=True)


async def test_the_list_tells_what_a_reranker_can_do(client: Client) -> None:
    model = await client.model("rank")
    assert list(model.capabilities) == [mod.MODEL_CAPABILITY_RERANK]
    assert (model.context_length, model.architecture) == (MAX_TOKENS, "bert")


async def test_the_client_gives_documents_with_their_scores(server: ServerProcess, client: Client) -> None:
    async with AsyncClient(server.address) as own:
        reranking = await own.rerank("rank", QUERY, DOCUMENTS, top_n=3)
    wanted = await rerank(client, *DOCUMENTS, top_n=3)
    assert [(each.index, each.score) for each in reranking.results] == [(r.index, r.score) for r in wanted.results]
    assert [each.document for each in reranking.results] == [DOCUMENTS[r.index] for r in wanted.results]


# --- refusals -----------------------------------------------------------------------------------------------------


async def test_a_document_that_is_too_long_is_refused_with_its_index_or_cut_as_asked(
    client: Client, folder: Path
) -> None:
    long = "a " * 100
    error = await failure_of(rerank(client, "x", long, "y", long + "b"))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
    assert fields_of(error) == ["documents[1]", "documents[3]"]
    assert facts_of(error) == {"prompt_tokens": "106", "context_length": str(MAX_TOKENS), "texts": "2"}
    cut = await rerank(client, "x", long, truncation=inf.TEXT_TRUNCATION_END)
    assert list(cut.truncated_documents) == [1]
    ids, begin = await pair_of(client, QUERY, long)
    logit = NumpyBert(folder).logit([*ids[: MAX_TOKENS - 1], ids[-1]], begin)
    assert math.isclose(scores_of(cut)[1], 1 / (1 + math.exp(-logit)), abs_tol=1e-5)


async def test_a_query_that_leaves_no_room_is_refused_even_where_documents_may_be_cut(client: Client) -> None:
    for query in ("a " * (MAX_TOKENS - 3), "a " * 400_000):
        error = await failure_of(rerank(client, "x", query=query, truncation=inf.TEXT_TRUNCATION_END))
        assert (reason_of(error), fields_of(error)) == ("PROMPT_TOO_LONG", ["query"])
    just = await rerank(client, "x y", query="a " * (MAX_TOKENS - 4), truncation=inf.TEXT_TRUNCATION_END)
    assert list(just.truncated_documents) == [0]


async def test_every_bad_field_is_named_at_once(client: Client) -> None:
    bad: dict[str, Any] = {"query": "", "truncation": 7, "request_id": "a b"}
    error = await failure_of(rerank(client, "x", "", scheduling=gen.SchedulingOptions(priority=1000), **bad))
    assert reason_of(error) == "INVALID_PARAMETER"
    assert set(fields_of(error)) == {"request_id", "query", "documents[1]", "truncation", "scheduling.priority"}
    assert fields_of(await failure_of(rerank(client))) == ["documents"]
    assert fields_of(await failure_of(rerank(client, *["x"] * 4097))) == ["documents"]


async def test_each_model_does_what_it_can(client: Client) -> None:
    for model in ("chat", "emb", "two"):
        error = await failure_of(rerank(client, "x", model=model))
        assert (reason_of(error), facts_of(error)["capability"]) == ("CAPABILITY_MISSING", "rerank")
    error = await failure_of(client.inference.Embed(inf.EmbedRequest(model="rank", texts=["x"])))
    assert (reason_of(error), facts_of(error)["capability"]) == ("CAPABILITY_MISSING", "embed")
    error = await failure_of(client.inference.Generate(inf.GenerateRequest(model="rank", prompt="x")))
    assert (reason_of(error), facts_of(error)["capability"]) == ("CAPABILITY_MISSING", "generate")
    error = await failure_of(rerank(client, "x", model="nobody"))
    assert reason_of(error) == "MODEL_NOT_FOUND"
    error = await failure_of(client.models.LoadModel(mod.LoadModelRequest(name="two"), timeout=60))
    assert reason_of(error) == "MODEL_UNSUPPORTED"


# --- the end of a request -----------------------------------------------------------------------------------------


async def test_a_client_that_leaves_stops_the_batches_that_are_left(client: Client) -> None:
    call = rerank(client, *[LONG_TEXT] * MANY)
    await until_running(client)
    call.cancel()
    await client.settled()
    assert len((await rerank(client, "x")).results) == 1


async def test_it_can_be_cancelled_by_its_id_which_is_its_own_while_it_runs(client: Client) -> None:
    call = rerank(client, *[LONG_TEXT] * MANY, request_id="long-one")
    await until_running(client)
    error = await failure_of(client.inference.Embed(inf.EmbedRequest(model="emb", texts=["x"], request_id="long-one")))
    assert reason_of(error) == "REQUEST_ID_IN_USE"
    assert await client.cancel("long-one")
    error = await failure_of(call)
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_REQUEST")


async def test_an_unload_by_force_ends_it(client: Client) -> None:
    call = rerank(client, *[LONG_TEXT] * MANY)
    await until_running(client)
    await client.unload("rank", "FORCE")
    error = await failure_of(call)
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.ABORTED, "MODEL_UNLOADED")


async def test_a_preempted_rerank_goes_on_with_the_scores_it_has(client: Client) -> None:
    documents = [f"{LONG_TEXT} {i}" for i in range(200)]
    whole = await rerank(client, *documents)
    call = rerank(client, *documents)
    await until_running(client)
    await asyncio.sleep(0.1)
    rival = await client.answer("chat", 2, contention=preempt())
    assert rival.finished is not None
    answer = await call
    assert answer.preemptions == 1
    assert answer.model.load_generation > whole.model.load_generation
    first, second = scores_of(whole), scores_of(answer)
    np.testing.assert_allclose([second[i] for i in range(200)], [first[i] for i in range(200)], atol=1e-6)
