"""A reranker's scores: as an independent BERT has them, the same alone and in any batch."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferd_server.core.embedding import EncodeRequest
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import (
    Capability,
    EngineKind,
    EngineSettings,
    ModelEntry,
    RerankerFacts,
    SamplingDefaults,
)
from inferd_server.engine.checks import check_model_folder
from inferd_server.registry.catalog import describe
from support import tiny_embedder, tiny_reranker
from support.engine_room import LoadingFake
from support.numpy_bert import NumpyBert
from support.tiny_embedder import MAX_TOKENS

QUERY = (2, 6, 7, 3)


def settings(folder: Path, **changes: Any) -> EngineSettings:
    return EngineSettings(name="tiny", path=folder, kind=EngineKind.RERANKING, **changes)


def open_engine(folder: Path, **changes: Any) -> Any:
    from inferd_server.engine.embedding import open_embedding_engine

    return open_embedding_engine(settings(folder, **changes), LoadingFake())


def scores(engine: Any, *texts: tuple[int, ...], second_from: int = len(QUERY)) -> list[float]:
    """Of one request."""
    request = EncodeRequest(tuple(enumerate(texts)), normalize=False, second_from=second_from)
    engine.insert(request)
    found: dict[int, float] = {}
    while engine.has_work:
        for piece in engine.step().tokens:
            assert not piece.failure, piece.failure
            found.update({index: float(np.frombuffer(packed, "<f4")[0]) for index, packed in piece.vectors})
    return [found[i] for i in range(len(texts))]


def pairs(count: int, longest: int = 50, seed: int = 0) -> list[tuple[int, ...]]:
    source = random.Random(seed)
    return [(*QUERY, *(source.randrange(5, 60) for _ in range(source.randint(1, longest))), 3) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reranker.build(tmp_path_factory.mktemp("reranker") / "m")


@pytest.fixture(scope="module")
def bert(folder: Path) -> Iterator[Any]:
    engine = open_engine(folder)
    yield engine
    engine.close()


def test_scores_are_those_of_an_independent_bert_with_its_segments(bert: Any, folder: Path) -> None:
    reference, texts = NumpyBert(folder), pairs(20)
    wanted = [reference.logit(text, len(QUERY)) for text in texts]
    np.testing.assert_allclose(scores(bert, *texts), wanted, atol=1e-5)
    assert max(wanted) - min(wanted) > 0.1
    blind = [reference.logit(text, len(text)) for text in texts]
    assert np.abs(np.subtract(blind, wanted)).max() > 1e-3
    np.testing.assert_allclose(scores(bert, *texts, second_from=0), blind, atol=1e-5)


def test_scores_of_a_roberta_are_those_of_an_independent_one_up_to_its_last_position(tmp_path: Path) -> None:
    folder = tiny_reranker.build(tmp_path / "m", "xlm-roberta")
    engine, reference = open_engine(folder), NumpyBert(folder)
    texts = [*pairs(10), (*QUERY, *[9] * (MAX_TOKENS - len(QUERY) - 1), 3)]
    # It has one segment: where the document begins changes nothing.
    wanted = [reference.logit(text, len(text)) for text in texts]
    np.testing.assert_allclose(scores(engine, *texts), wanted, atol=1e-5)
    engine.close()


@pytest.mark.parametrize("kind", tiny_reranker.MODEL_TYPES)
def test_a_pair_in_a_batch_has_the_score_it_has_alone(tmp_path: Path, kind: str) -> None:
    engine = open_engine(tiny_reranker.build(tmp_path / "m", kind))
    texts = pairs(12)
    alone = [scores(engine, text)[0] for text in texts]
    np.testing.assert_allclose(scores(engine, *texts), alone, atol=1e-5)
    assert engine._queue.batches
    engine.close()


def test_requests_with_other_queries_share_a_batch(bert: Any, folder: Path) -> None:
    short, long = (2, 6, 3, 9, 9, 3), (2, 6, 7, 8, 3, 9, 3)
    for text, begin in ((long, 5), (short, 3)):
        bert.insert(EncodeRequest(((0, text),), normalize=False, second_from=begin))
    found = [np.frombuffer(piece.vectors[0][1], "<f4")[0] for piece in bert.step().tokens]
    reference = NumpyBert(folder)
    np.testing.assert_allclose(sorted(found), sorted([reference.logit(short, 3), reference.logit(long, 5)]), atol=1e-5)


def test_a_model_without_a_second_segment_never_reads_one(tmp_path: Path) -> None:
    folder = tiny_reranker.build(tmp_path / "m", type_vocab_size=1)
    engine = open_engine(folder)
    text = pairs(1)[0]
    np.testing.assert_allclose(scores(engine, text), [NumpyBert(folder).logit(text, len(text))], atol=1e-5)
    engine.close()


# --- the folder ---------------------------------------------------------------------------------------------------


def entry_of(folder: Path) -> ModelEntry:
    return describe(ModelEntry("m", EngineSettings("m", folder)), {}, SamplingDefaults())


def change(folder: Path, file: str = "config.json", **changes: Any) -> None:
    path = folder / file
    held = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**held, **changes}))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tiny_reranker.build(tmp_path / "m")


def test_a_classifier_of_one_label_is_a_reranker(own: Path) -> None:
    entry = entry_of(own)
    assert (entry.engine.kind, entry.capabilities) == (EngineKind.RERANKING, {Capability.RERANK})
    assert (entry.reranker, entry.embedder) == (RerankerFacts(MAX_TOKENS), None)
    assert (entry.context_length, entry.makes_text) == (MAX_TOKENS, False)
    check_model_folder(entry.engine)
    change(own, num_labels=1, id2label={"0": "a", "1": "b"})
    assert entry_of(own).reranker is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"id2label": {"0": "a", "1": "b"}},
        {"num_labels": 2},
        {"num_labels": "x"},
        {"architectures": ["BertForTokenClassification"]},
        {"architectures": None},
        {"model_type": "llama"},
        {"model_type": ["bert"]},
    ],
)
def test_anything_else_is_none(own: Path, changes: dict[str, Any]) -> None:
    change(own, **changes)
    assert entry_of(own).reranker is None
    with pytest.raises(InferdError) as caught:
        check_model_folder(settings(own))
    assert caught.value.reason is Reason.MODEL_UNSUPPORTED


def test_an_embedder_is_none(tmp_path: Path) -> None:
    assert entry_of(tiny_embedder.build(tmp_path / "m")).reranker is None


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.linear.Identity"}),
    ],
)
def test_the_folder_says_whether_a_score_is_a_sigmoid(own: Path, file: str, changes: dict[str, Any]) -> None:
    change(own, file, **changes)
    assert entry_of(own).reranker == RerankerFacts(MAX_TOKENS, applies_sigmoid=False)
    change(own, sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"})
    assert entry_of(own).reranker == RerankerFacts(MAX_TOKENS)
    check_model_folder(entry_of(own).engine)


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation 'Tanh'"),
        ("config.json", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("config.json", {"model_type": "modernbert", "classifier_pooling": "max"}, "classifier_pooling 'max'"),
        ("config.json", {"model_type": "modernbert", "classifier_activation": ["x"]}, "classifier_activation"),
        ("config.json", {"model_file": "x.py"}, "trust_remote_code is not set"),
        ("config.json", {"sentence_transformers": 3, "hidden_act": {}}, "hidden_act"),
    ],
)
def test_what_cant_be_done_rightly_is_refused_by_name(own: Path, file: str, changes: dict[str, Any], told: str) -> None:
    change(own, file, **changes)
    with pytest.raises(InferdError, match=told) as caught:
        check_model_folder(settings(own))
    assert caught.value.reason is Reason.MODEL_UNSUPPORTED


@pytest.mark.parametrize(
    ("modules", "told"), [("{", "can't be read"), ("[3]", "can't be read"), ('[{"type": "x.Dense"}]', "'Dense'")]
)
def test_odd_modules_are_refused(own: Path, modules: str, told: str) -> None:
    (own / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    check_model_folder(settings(own))
    (own / "modules.json").write_text(modules)
    with pytest.raises(InferdError, match=told):
        check_model_folder(settings(own))


def test_keys_without_a_meaning_for_rerankers_are_refused_by_name(own: Path, tmp_path: Path) -> None:
    with pytest.raises(InferdError, match="adapter_path is not supported for rerankers; kv_bits is not supported"):
        check_model_folder(settings(own, adapter_path=tmp_path, kv_bits=8))


def test_weights_of_more_labels_than_the_config_says_fail_the_load(tmp_path: Path) -> None:
    folder = tiny_reranker.build(tmp_path / "m", labels=2)
    change(folder, id2label=None)
    with pytest.raises(InferdError) as caught:
        open_engine(folder)
    assert caught.value.reason is Reason.MODEL_LOAD_FAILED
