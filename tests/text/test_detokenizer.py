"""Ids into text while they arrive: exact for any split, whole characters only, bounded, harmless for any id."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from inferd_server.text.detokenizer import (
    REPLACEMENT,
    Detokenizer,
    Vocabulary,
    WindowDetokenizer,
    byte_decoding,
    byte_fallback_bytes,
    byte_level_bytes,
)
from inferd_server.text.tokenizer import Tokenizer

Tokenizers = dict[str, Tokenizer]
References = dict[str, Callable[[Sequence[int]], str]]
FAMILIES = ("byte-level", "sentencepiece", "metaspace", "wordpiece")


def streamed(detokenizer: Detokenizer, ids: Sequence[int], size: int = 1) -> str:
    pieces = [detokenizer.add(ids[at : at + size]) for at in range(0, len(ids), size)]
    return "".join(pieces) + detokenizer.flush()


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> Tokenizers:
    return {family: Tokenizer.load(folder) for family, folder in folders.items()}


@pytest.fixture(scope="module")
def references(folders: dict[str, Path]) -> References:
    def decoder(folder: Path) -> Callable[[Sequence[int]], str]:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        return lambda ids: tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    return {family: decoder(folder) for family, folder in folders.items()}


@given(text=st.text(), size=st.integers(1, 5))
def test_any_text_survives_any_split(tokenizers: Tokenizers, text: str, size: int) -> None:
    tokenizer = tokenizers["byte-level"]
    assert streamed(tokenizer.detokenizer(), tokenizer.encode(text), size) == text


@given(ids=st.lists(st.integers(0, 500), max_size=40), size=st.integers(1, 5))
def test_random_byte_level_ids_give_what_the_library_decodes(
    tokenizers: Tokenizers, references: References, ids: list[int], size: int
) -> None:
    tokenizer = tokenizers["byte-level"]
    assert streamed(tokenizer.detokenizer(), ids, size) == references["byte-level"](ids) == tokenizer.decode(ids)


@given(text=st.text(), size=st.integers(1, 5))
def test_a_sentencepiece_tokenizer_streams_what_the_library_decodes(
    tokenizers: Tokenizers, references: References, text: str, size: int
) -> None:
    tokenizer = tokenizers["sentencepiece"]
    ids = tokenizer.encode(text)
    assert streamed(tokenizer.detokenizer(), ids, size) == references["sentencepiece"](ids)


@given(data=st.data(), family=st.sampled_from(["metaspace", "wordpiece"]), size=st.integers(1, 5))
def test_other_tokenizers_stream_what_the_library_decodes(
    tokenizers: Tokenizers, references: References, data: st.DataObject, family: str, size: int
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizers[family].vocabulary_size + 3), max_size=30))
    known = [i for i in ids if i < tokenizers[family].vocabulary_size]
    assert streamed(tokenizers[family].detokenizer(), ids, size) == references[family](known)


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_outside_the_vocabulary_print_nothing(tokenizers: Tokenizers, family: str) -> None:
    tokenizer = tokenizers[family]
    the = tokenizer.encode("the")
    assert tokenizer.decode([-1, *the, 2**31, 2**40, tokenizer.vocabulary_size]) == tokenizer.decode(the)


def test_ids_outside_the_vocabulary_are_not_remembered() -> None:
    vocabulary = Vocabulary(lambda _: "a", str.encode, 1)
    assert [vocabulary[i] for i in (0, 1, 2, -1)] == [b"a", b"", b"", b""]
    assert len(vocabulary) == 1


def test_an_unfinished_character_waits_and_then_comes_whole(tokenizers: Tokenizers) -> None:
    for family in ("byte-level", "sentencepiece"):
        tokenizer = tokenizers[family]
        first, *middle, last = tokenizer.encode("𝄞")[-4:]
        detokenizer = tokenizer.detokenizer()
        assert [detokenizer.add([i]) for i in (first, *middle)] == ["", "", ""]
        assert detokenizer.add([last]) == "𝄞"


@given(ids=st.lists(st.integers(0, 400), max_size=40), size=st.integers(1, 5))
def test_random_sentencepiece_ids_differ_from_the_library_in_broken_bytes_alone(
    tokenizers: Tokenizers, references: References, ids: list[int], size: int
) -> None:
    tokenizer = tokenizers["sentencepiece"]
    text = streamed(tokenizer.detokenizer(), ids, size)
    assert text == tokenizer.decode(ids)
    if REPLACEMENT not in text:
        assert text == references["sentencepiece"](ids)


def test_an_unfinished_character_ends_as_one_replacement(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers["byte-level"]
    ids = tokenizer.encode("𝄞")
    detokenizer = tokenizer.detokenizer()
    assert "".join(detokenizer.add([i]) for i in ids[:-1]) == ""
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


def test_endless_broken_bytes_are_not_buffered(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers["byte-level"]
    broken = tokenizer._tokenizer.convert_tokens_to_ids("ĵ")  # the byte 0xF5, which begins nothing
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.add([broken] * 1000) == REPLACEMENT * 1000


def test_nul_and_a_leading_space_are_kept(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers["byte-level"]
    for text in ("\0", " Paris", "  two", "a\0b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_printed_as_text(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers["byte-level"]
    text = "<think>yes</think><|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_window_holds_back_a_bounded_number_of_tokens() -> None:
    detokenizer = WindowDetokenizer(lambda ids: REPLACEMENT * len(ids), lambda _: True)
    text = detokenizer.add([0] * 1000)
    assert len(text) > 990
    assert len(text) + len(detokenizer.flush()) == 1000


def test_a_window_that_never_prints_stays_small() -> None:
    sizes: list[int] = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return ""

    assert WindowDetokenizer(decode, lambda _: True).add([0] * 1000) == ""
    assert max(sizes) < 32


def test_byte_tokens_of_sentencepiece_are_bytes_and_others_text() -> None:
    assert byte_fallback_bytes("<0x0A>") == b"\n"
    assert byte_fallback_bytes("<0xZZ>") == b"<0xZZ>"
    assert byte_fallback_bytes("▁the▁") == b" the "


def test_added_tokens_outside_the_byte_alphabet_are_text() -> None:
    assert byte_level_bytes("Ġthe") == b" the"
    assert byte_level_bytes("two words") == b"two words"


def test_unknown_decoders_are_left_to_the_library() -> None:
    assert byte_decoding('{"type": "WordPiece", "prefix": "##", "cleanup": true}') is None
    assert byte_decoding('{"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}') == (byte_level_bytes, False)
    replace = '{"type": "Replace", "pattern": {"String": "x"}, "content": " "}'
    steps = f'{replace}, {{"type": "ByteFallback"}}, {{"type": "Fuse"}}'
    assert byte_decoding(f'{{"type": "Sequence", "decoders": [{steps}]}}') is None
