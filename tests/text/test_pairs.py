"""A query and a document as one sequence: as transformers pairs them, the query whole, the document cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.text.pairs import Pairs
from inferd_server.text.tokenizer import Tokenizer
from support import tiny_reranker


def tokenizer_of(folder: Path, model_type: str = "bert") -> Tokenizer:
    return Tokenizer.load(tiny_reranker.build(folder, model_type), name="tiny")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("reranker") / "m")


def paired(tokenizer: Tokenizer, query: str, document: str, max_tokens: int) -> tuple[Any, int]:
    pairs = Pairs(tokenizer)
    frame = pairs.frame(pairs.query(query, max_tokens))
    return pairs.sequencer.sequences([document], max_tokens, frame)[0], len(frame.before)


@pytest.mark.parametrize(("query", "document"), [("the cat", "a dog sat"), ("x", "y"), ("a", "a a a"), (" ", " ")])
def test_a_pair_is_that_of_transformers_with_its_segments(tokenizer: Tokenizer, query: str, document: str) -> None:
    sequence, second_from = paired(tokenizer, query, document, 64)
    wanted = tokenizer.backend(query, document)
    assert list(sequence.ids) == wanted["input_ids"]
    assert [0] * second_from + [1] * (len(sequence.ids) - second_from) == wanted["token_type_ids"]
    assert (sequence.tokens, sequence.is_cut) == (len(sequence.ids), False)


def test_a_document_that_is_too_long_is_cut_as_transformers_does_it(tokenizer: Tokenizer) -> None:
    query, document = "the cat", "sat on the mat " * 9
    sequence, _ = paired(tokenizer, query, document, 16)
    wanted = tokenizer.backend(query, document, truncation="only_second", max_length=16)["input_ids"]
    assert list(sequence.ids) == wanted
    assert (sequence.tokens, sequence.is_cut) == (2 + 36 + 3, True)
    longer, _ = paired(tokenizer, query, "sat on the mat " * 100_000, 16)
    assert (list(longer.ids), longer.is_counted) == (wanted, False)


def test_a_tokenizer_without_segments_has_none(tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert Pairs(tokenizer).has_segments
    assert not Pairs(tokenizer_of(tmp_path / "m", "xlm-roberta")).has_segments


def test_a_tokenizer_that_pairs_otherwise_is_refused(tmp_path: Path) -> None:
    folder = tiny_reranker.build(tmp_path / "m")
    path = folder / "tokenizer.json"
    held = json.loads(path.read_text())
    held["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {},
    }
    path.write_text(json.dumps(held))
    with pytest.raises(InferdError, match="segments") as caught:
        Pairs(Tokenizer.load(folder, name="tiny"))
    assert caught.value.reason is Reason.MODEL_UNSUPPORTED
