"""Which texts are encoded together next. Pure; no mlx is imported."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedText:
    """A text of the request `uid`, told apart there by its index."""

    uid: int
    index: int
    ids: tuple[int, ...]


class TextQueue:
    """Texts of several requests. Each batch begins with the longest one of the request whose turn it is, so that none
    starves behind a large one, and is filled with others that are more than half as long: of that request first, then
    of the others.

    Attributes:
        batches: False gives each text alone.
    """

    def __init__(self, batch_tokens: int) -> None:
        """`batch_tokens`: most tokens in a batch, padding included; a longer text goes alone."""
        self.batches = True
        self._batch_tokens = batch_tokens
        self._texts: dict[int, list[QueuedText]] = {}  # by request, in the order of their turns; the longest last

    def add(self, uid: int, texts: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """A new request's texts: (index, ids)."""
        queued = (QueuedText(uid, index, ids) for index, ids in texts)
        self._texts[uid] = sorted(queued, key=_length)

    def remove(self, uid: int) -> None:
        """Forget what is left of a request."""
        self._texts.pop(uid, None)

    def next_batch(self) -> list[QueuedText]:
        """Take out the next batch: at least one text.

        Raises:
            StopIteration: nothing is left.
        """
        uid = next(iter(self._texts))
        own = self._texts.pop(uid)
        longest = len(own[-1].ids)
        room = max(1, self._batch_tokens // longest) if self.batches else 1
        batch = _take(own, longest, room)
        for texts in list(self._texts.values()):
            if len(batch) == room:
                break
            batch += _take(texts, longest, room - len(batch))
        if own:
            self._texts[uid] = own  # behind all others
        self._texts = {uid: texts for uid, texts in self._texts.items() if texts}
        return batch


def _take(texts: list[QueuedText], longest: int, most: int) -> list[QueuedText]:
    """Take out up to so many texts, the longest first, that are at most `longest` and more than half of it."""
    end = bisect_right(texts, longest, key=_length)
    begin = max(bisect_right(texts, longest // 2, key=_length), end - most)
    taken = texts[begin:end][::-1]
    del texts[begin:end]
    return taken


def _length(text: QueuedText) -> int:
    return len(text.ids)
