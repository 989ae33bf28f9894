"""Caches of prefixes that sequences had in common, kept for the next one: what is found need not be prefilled again.

Plain KV caches are cut into blocks that sequences share (prefix_tree.py), and any beginning of a stored sequence can be
used. Caches that hold a window or a state can't be cut: they are stored whole, and used where a prompt begins with just
the tokens they were made from. Either way what is stored is a copy: it pins no batch, and nobody writes to it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

from . import caches as cache
from .device import start
from .prefix_tree import BLOCK_TOKENS, TOKEN_WIDTH, PrefixTree, encode
from .row import Row

MIN_TOKENS = BLOCK_TOKENS
"""Shorter sequences are not stored, and shorter matches not used: prefilling them is as cheap."""
MAX_WHOLE = 1024
"""Most whole caches stored: a lookup compares with each of the same identity."""


@dataclass(frozen=True, slots=True)
class Found:
    """Caches filled with the first tokens of a context, for one sequence to go on with."""

    caches: cache.Caches
    tokens: int


class _Store(Protocol):
    """One way of storing. `data` are encoded tokens."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    def find(self, identity: str, data: bytes) -> Found | None:
        """The longest stored beginning of `data`."""

    def put(self, identity: str, data: bytes, source: cache.Source) -> None:
        """Store the caches of these tokens."""

    def keep(self, identity: str, data: bytes) -> None:
        """Evict what is stored of these tokens last."""

    def bound(self, nbytes: int) -> None:
        """Hold at most so many bytes from now on."""


class PrefixCache:
    """The prefix cache of one loaded model.

    Args:
        can_cut: whether the model's caches can be cut at any token.
        bound_nbytes: most bytes it may hold.
    """

    def __init__(self, model: Any, bound_nbytes: int, *, can_cut: bool) -> None:
        self._bound_nbytes = bound_nbytes
        self._store: _Store = _Blocks(model, bound_nbytes) if can_cut else _Whole(bound_nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self._store.nbytes

    def find(self, row: Row) -> Found | None:
        """Caches for the longest stored beginning of a row's context, its last token excepted: that one is always
        computed. None where too little is there to be worth it."""
        if not self._bound_nbytes or len(row.context) <= MIN_TOKENS:
            return None
        if not row.may_be_cut:
            return None
        found = self._store.find(_identity(row), encode(row.context[:-1]))
        return found if found is not None and found.tokens >= MIN_TOKENS else None

    def put(self, row: Row, source: cache.Source) -> None:
        """Store a row's caches as they are now: for the first `source.tokens` tokens of its history."""
        if not self._bound_nbytes or source.tokens < MIN_TOKENS or not row.may_be_cut:
            return
        data = encode(row.history[: source.tokens])
        self._store.put(_identity(row), data, source)
        if row.request.session_id:
            self._store.keep(_identity(row), data)

    def bound(self, nbytes: int) -> None:
        """Hold at most so many bytes from now on; what is beyond is dropped at once."""
        self._bound_nbytes = nbytes
        self._store.bound(nbytes)


def _identity(row: Row) -> str:
    """Who may share: the same tokens mean something else beside other pictures."""
    pictures = row.request.pictures
    return row.request.cache_identity if pictures is None else f"{row.request.cache_identity}\n{pictures.identity}"


class _Blocks:
    """Plain KV caches, cut into blocks."""

    def __init__(self, model: Any, bound_nbytes: int) -> None:
        self._model = model
        self._tree = PrefixTree(bound_nbytes)

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    def find(self, identity: str, data: bytes) -> Found | None:
        match = self._tree.find(identity, data)
        if match.tokens < MIN_TOKENS:
            return None
        pieces = [block.content for block in match.blocks]
        return Found(cache.joined(self._model, pieces, match.tokens), match.tokens)

    def put(self, identity: str, data: bytes, source: cache.Source) -> None:
        missing = self._tree.missing(identity, data)
        if not missing:
            return
        first = missing[0][0]
        token_nbytes = source.token_nbytes
        room = self._tree.make_room(token_nbytes * (source.tokens - first), identity, data)
        fitting = [each for each in missing if (each[1] - first) * token_nbytes <= room]
        if fitting:
            pieces = source.cut(fitting)
            start(pieces)
            contents = [
                (piece, (end - begin) * token_nbytes) for piece, (begin, end) in zip(pieces, fitting, strict=True)
            ]
            self._tree.insert(identity, data, contents)

    def keep(self, identity: str, data: bytes) -> None:
        self._tree.keep(identity, data)

    def bound(self, nbytes: int) -> None:
        self._tree.bound(nbytes)


@dataclass(slots=True)
class _Entry:
    caches: cache.Caches
    nbytes: int
    is_kept: bool = False


class _Whole:
    """Caches that can't be cut, by their exact tokens; the first ones are evicted first, kept ones last."""

    def __init__(self, bound_nbytes: int) -> None:
        self._bound_nbytes = bound_nbytes
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()
        self.nbytes = 0

    def find(self, identity: str, data: bytes) -> Found | None:
        fitting = [key for key in self._entries if key[0] == identity and data.startswith(key[1])]
        if not fitting:
            return None
        key = max(fitting, key=lambda each: len(each[1]))
        self._entries.move_to_end(key)
        return Found(cache.copied(self._entries[key].caches), len(key[1]) // TOKEN_WIDTH)

    def put(self, identity: str, data: bytes, source: cache.Source) -> None:
        if (identity, data) in self._entries:
            return
        caches = source.whole()
        nbytes = cache.nbytes(caches)
        self._evict_beyond(self._bound_nbytes - nbytes, MAX_WHOLE - 1)
        if nbytes <= self._bound_nbytes - self.nbytes:
            start(cache.states(caches))
            self._entries[identity, data] = _Entry(caches, nbytes)
            self.nbytes += nbytes

    def keep(self, identity: str, data: bytes) -> None:
        entry = self._entries.get((identity, data))
        if entry is not None:
            entry.is_kept = True

    def bound(self, nbytes: int) -> None:
        self._bound_nbytes = nbytes
        self._evict_beyond(nbytes, MAX_WHOLE)

    def _evict_beyond(self, nbytes: int, count: int) -> None:
        while self._entries and (self.nbytes > nbytes or len(self._entries) > count):
            ordinary = (key for key, entry in self._entries.items() if not entry.is_kept)
            key = next(ordinary, next(iter(self._entries)))
            self.nbytes -= self._entries.pop(key).nbytes
