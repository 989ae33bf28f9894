"""Token ids into text while they arrive: whole UTF-8 only, never retracted, with a bounded amount held back."""

import json
from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_HELD_TOKENS = 8  # more tokens than any character has bytes: what is still broken then stays broken
_METASPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Detokenizer(Protocol):
    """One output's text. Special tokens are printed as text; ids outside the vocabulary print nothing."""

    def add(self, ids: Sequence[int]) -> str:
        """Take more ids; returns the new text, maybe ""."""

    def flush(self) -> str:
        """What is held back at the end: U+FFFD for an unfinished character, else ""."""


class Vocabulary(dict[int, bytes]):
    """The bytes of each token, made at first use and shared by all outputs of a model."""

    def __init__(self, token_of: Callable[[int], str | None], bytes_of: Callable[[str], bytes], size: int) -> None:
        super().__init__()
        self._token_of = token_of
        self._bytes_of = bytes_of
        self._size = size

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id) if 0 <= token_id < self._size else None
        if token is None:
            return b""
        piece = self[token_id] = self._bytes_of(token)
        return piece


class ByteDetokenizer:
    """For vocabularies whose tokens are bytes; holds back at most the 3 bytes of an unfinished character."""

    def __init__(self, vocabulary: Vocabulary, *, strips_space: bool = False) -> None:
        """`strips_space`: drop one space at the very beginning, as the tokenizer's own decoder does."""
        self._vocabulary = vocabulary
        self._strips_space = strips_space
        self._rest = b""

    def add(self, ids: Sequence[int]) -> str:
        vocabulary = self._vocabulary
        data = self._rest + b"".join([vocabulary[i] for i in ids])
        text, used = utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        return self._stripped(text) if self._strips_space and text else text

    def flush(self) -> str:
        text, _ = utf_8_decode(self._rest, "replace", True)
        self._rest = b""
        return text

    def _stripped(self, text: str) -> str:
        self._strips_space = False
        return text.removeprefix(" ")


class WindowDetokenizer:
    """For every other tokenizer: decodes the newest tokens together with those emitted just before them.

    What a token adds to the text may depend on its neighbour (word pieces, prefix spaces), so the difference of two
    decodes that begin at the same token is what is new. Holds back while the text ends in a broken character, but
    never more than a few tokens.
    """

    def __init__(self, decode: Callable[[list[int]], str], knows: Callable[[int], bool]) -> None:
        """`decode` is the tokenizer's own; it is only asked about ids that it `knows`."""
        self._decode = decode
        self._knows = knows
        self._context: list[int] = []  # the tokens emitted last
        self._held: list[int] = []

    def add(self, ids: Sequence[int]) -> str:
        pieces = []
        for token_id in filter(self._knows, ids):
            self._held.append(token_id)
            pieces.append(self._advance())
        return "".join(pieces)

    def flush(self) -> str:
        text = self._new_text()
        self._context, self._held = [], []
        return text

    def _advance(self) -> str:
        text = self._new_text()
        if (not text or text.endswith(REPLACEMENT)) and len(self._held) < _MAX_HELD_TOKENS:
            return ""
        self._context, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        known = self._decode(self._context) if self._context else ""
        return self._decode(self._context + self._held)[len(known) :]


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token of a byte-level vocabulary; added tokens outside its alphabet are plain text."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def byte_fallback_bytes(token: str) -> bytes:
    """Bytes of a token of a SentencePiece vocabulary with byte tokens such as <0x0A>."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return token.replace(_METASPACE, " ").encode()


def byte_decoding(decoder: str) -> tuple[Callable[[str], bytes], bool] | None:
    """How a decoder (as in tokenizer.json) makes bytes of a token, and whether it strips a first space; None if it
    works otherwise."""
    specification = json.loads(decoder)
    steps = specification["decoders"] if specification["type"] == "Sequence" else [specification]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_bytes, False
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"]:
        return None
    replaces = steps[0]["pattern"] == {"String": _METASPACE} and steps[0]["content"] == " "
    strip = steps[3:]
    strips = strip == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return (byte_fallback_bytes, strips) if replaces and (strips or not strip) else None
