"""Texts as an encoder's token sequences: as transformers makes and truncates them."""

from pathlib import Path
from typing import Any

import pytest

from inferd_server.text.sequences import PART_CHARACTERS, Sequencer
from inferd_server.text.tokenizer import Tokenizer
from support import tiny_embedder, tiny_llama

LIMIT = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_embedder.build(tmp_path_factory.mktemp("embedder") / "emb")


@pytest.fixture(scope="module")
def sequencer(folder: Path) -> Sequencer:
    return Sequencer(Tokenizer.load(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


TEXTS = ["the cat", "", "  ", "Ünïcode 🎬", "a b c d e f g h i j k l m n", "a " * 15, "[CLS] x [SEP]", "x" * 150]


def test_ids_are_those_of_transformers_cut_or_whole(sequencer: Sequencer, reference: Any) -> None:
    for text, found in zip(TEXTS, sequencer.sequences(TEXTS, LIMIT), strict=True):
        whole = reference(text)["input_ids"]
        assert list(found.ids) == reference(text, truncation=True, max_length=LIMIT)["input_ids"]
        assert (found.tokens, found.is_counted, found.is_cut) == (len(whole), True, len(whole) > LIMIT)


def test_a_long_text_is_read_up_to_the_limit_alone(sequencer: Sequencer) -> None:
    text = "a b " * PART_CHARACTERS
    (found,) = sequencer.sequences([text], LIMIT)
    assert (len(found.ids), found.is_counted, found.is_cut) == (LIMIT, False, True)
    assert found.tokens <= PART_CHARACTERS
    (same,) = sequencer.sequences(["a b " * 10], LIMIT)
    assert found.ids == same.ids


def test_a_long_text_of_few_tokens_is_read_to_its_end(sequencer: Sequencer) -> None:
    (found,) = sequencer.sequences(["a" + " " * 3 * PART_CHARACTERS + "b"], LIMIT)
    (same,) = sequencer.sequences(["a b"], LIMIT)
    assert found == same


def test_a_limit_below_the_special_tokens_leaves_those(sequencer: Sequencer) -> None:
    (found,) = sequencer.sequences(["a"], 1)
    assert (len(found.ids), found.tokens, found.is_cut) == (2, 3, True)


def test_a_tokenizer_without_special_tokens_adds_none(tiny_model: Path) -> None:
    (found,) = Sequencer(Tokenizer.load(tiny_model)).sequences(["abc"], LIMIT)
    assert (len(found.ids), found.tokens) == (3, 3)
    assert tiny_llama.SPECIAL_TOKENS
