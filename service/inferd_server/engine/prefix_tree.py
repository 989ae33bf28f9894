"""Which prefixes of token sequences are stored, in blocks that sequences share: a radix tree over blocks, LRU by bytes.

Pure: what a block holds is opaque here. Tokens are given as bytes (4 for each), so that hashing and comparing them is
cheap: a lookup takes one hash per block. A block's key is its tokens, under its parent: nothing is told apart by a hash
alone, so no collision can hand one prompt the content of another.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

BLOCK_TOKENS = 64
TOKEN_WIDTH = 4
MAX_COMPARED = 64
"""Blocks looked at for the one that shares most with a rest; the newest ones."""

_BLOCK_WIDTH = BLOCK_TOKENS * TOKEN_WIDTH


def encode(tokens: Sequence[int]) -> bytes:
    """Token ids as this room compares them."""
    return array("I", tokens).tobytes()


@dataclass(slots=True, eq=False)
class Block:
    """Up to BLOCK_TOKENS tokens behind those of its parent. Only full ones have children.

    Attributes:
        key: its tokens, encoded; a root's is empty.
        content: whatever was stored for them.
        is_kept: evicted only when nothing ordinary is left.
        identity: of a root: whose it is.
    """

    key: bytes
    parent: "Block | None" = None
    content: Any = None
    nbytes: int = 0
    is_kept: bool = False
    identity: str = ""
    children: dict[bytes, "Block"] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return len(self.key) // TOKEN_WIDTH


@dataclass(slots=True)
class Match:
    """A stored prefix: its blocks from the first on, of the last one only `last_tokens`."""

    blocks: list[Block]
    last_tokens: int = BLOCK_TOKENS

    @property
    def tokens(self) -> int:
        """Its length."""
        return (len(self.blocks) - 1) * BLOCK_TOKENS + self.last_tokens if self.blocks else 0


class PrefixTree:
    """Blocks of several identities, which never see each other's, within one bound of bytes.

    In each of the two orders (ordinary and kept blocks) whoever was used last comes last, and a parent behind its
    children: so the first is always one without children, or with children that the other order holds.
    """

    def __init__(self, bound_nbytes: int) -> None:
        self._bound_nbytes = bound_nbytes
        self._roots: dict[str, Block] = {}
        self._ordinary: OrderedDict[Block, None] = OrderedDict()
        self._kept: OrderedDict[Block, None] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        """Blocks stored."""
        return len(self._ordinary) + len(self._kept)

    def find(self, identity: str, data: bytes) -> Match:
        """The longest stored prefix of some encoded tokens; it becomes the last to be evicted."""
        match = self._walk(identity, data)
        node = match.blocks[-1] if match.blocks else self._roots.get(identity)
        rest = data[len(match.blocks) * _BLOCK_WIDTH :][:_BLOCK_WIDTH]
        if node is not None and rest:
            block, common = _most_common(node, rest)
            if block is not None:
                match = Match([*match.blocks, block], common)
        self._touch(match.blocks)
        return match

    def missing(self, identity: str, data: bytes) -> list[tuple[int, int]]:
        """The blocks of some encoded tokens that are not stored, as (begin, end) in tokens; the last may be partial."""
        match = self._walk(identity, data)
        begin, end = match.tokens, len(data) // TOKEN_WIDTH
        blocks = [(place, min(place + BLOCK_TOKENS, end)) for place in range(begin, end, BLOCK_TOKENS)]
        if len(blocks) == 1 and end - begin < BLOCK_TOKENS:
            parent = match.blocks[-1] if match.blocks else self._roots.get(identity)
            rest = data[begin * TOKEN_WIDTH :]
            if parent is not None and any(key.startswith(rest) for key in _newest(parent)):
                return []
        return blocks

    def make_room(self, nbytes: int, identity: str, data: bytes) -> int:
        """Evict, but nothing that `data` begins with, until so many more bytes fit; returns how many do."""
        path = self._walk(identity, data).blocks
        self._touch(path)
        spared = set(path)
        while self.nbytes + nbytes > self._bound_nbytes and self._evict_first(spared):
            pass
        return max(0, self._bound_nbytes - self.nbytes)

    def insert(self, identity: str, data: bytes, contents: Sequence[tuple[Any, int]]) -> None:
        """Store (content, bytes) for the first of the `missing` blocks, in order. Room was made for them before."""
        path = self._walk(identity, data).blocks
        parent = path[-1] if path else self._roots.setdefault(identity, Block(b"", identity=identity))
        for content, nbytes in contents:
            place = len(path) * _BLOCK_WIDTH
            block = Block(data[place : place + _BLOCK_WIDTH], parent, content, nbytes)
            for key in [key for key in _newest(parent) if block.key.startswith(key)]:
                self._remove(parent.children[key])  # a beginning of the new one
            parent.children[block.key] = block
            self._ordinary[block] = None
            self.nbytes += nbytes
            path.append(block)
            parent = block
        self._touch(path)

    def keep(self, identity: str, data: bytes) -> None:
        """Evict what is stored of some encoded tokens only when nothing ordinary is left."""
        match = self.find(identity, data)
        path = match.blocks if not match.blocks or match.last_tokens == match.blocks[-1].tokens else match.blocks[:-1]
        for block in path:
            if not block.is_kept:
                block.is_kept = True
                del self._ordinary[block]
                self._kept[block] = None
        self._touch(path)

    def bound(self, nbytes: int) -> None:
        """Hold at most so many bytes from now on."""
        self._bound_nbytes = nbytes
        while self.nbytes > self._bound_nbytes and self._evict_first(frozenset()):
            pass

    def clear(self) -> None:
        """Drop everything."""
        self._roots.clear()
        self._ordinary.clear()
        self._kept.clear()
        self.nbytes = 0

    def _walk(self, identity: str, data: bytes) -> Match:
        """The stored full blocks that some encoded tokens begin with."""
        node = self._roots.get(identity)
        blocks: list[Block] = []
        for place in range(0, len(data) - _BLOCK_WIDTH + 1, _BLOCK_WIDTH):
            node = node.children.get(data[place : place + _BLOCK_WIDTH]) if node is not None else None
            if node is None:
                break
            blocks.append(node)
        return Match(blocks)

    def _touch(self, path: Sequence[Block]) -> None:
        for block in reversed(path):
            (self._kept if block.is_kept else self._ordinary).move_to_end(block)

    def _evict_first(self, spared: Set[Block]) -> bool:
        for order in (self._ordinary, self._kept):
            block = next(iter(order), None)
            if block is not None and block not in spared:
                self._remove(block)
                return True
        return False

    def _remove(self, block: Block) -> None:
        assert block.parent is not None
        assert not block.children, "a block goes before those it builds on"
        del (self._kept if block.is_kept else self._ordinary)[block]
        del block.parent.children[block.key]
        self.nbytes -= block.nbytes
        if block.parent.parent is None and not block.parent.children:
            del self._roots[block.parent.identity]


def _newest(parent: Block) -> Iterator[bytes]:
    return islice(reversed(parent.children), MAX_COMPARED)


def _most_common(parent: Block, rest: bytes) -> tuple[Block | None, int]:
    """The child that shares most tokens with the beginning of `rest`, and how many; (None, 0) without one."""
    best, most = None, 0
    for key in _newest(parent):
        common = _common_tokens(key, rest)
        if common > most:
            best, most = parent.children[key], common
    return best, most


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two encodings share at their beginning."""
    width = min(len(one), len(other))
    difference = int.from_bytes(one[:width], "little") ^ int.from_bytes(other[:width], "little")
    if not difference:
        return width // TOKEN_WIDTH
    return ((difference & -difference).bit_length() - 1) // (8 * TOKEN_WIDTH)
