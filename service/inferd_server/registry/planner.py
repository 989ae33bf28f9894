"""Which instances have to go so that a load fits: pure, idempotent, all or nothing."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

MOST_RELEASES_WEIGHED = 10
"""Above so many busy instances caution decides instead of weighing every set of them."""


class Candidate(Protocol):
    """Something that gives bytes back when it goes."""

    @property
    def nbytes(self) -> int:
        """Bytes it would give back."""


C = TypeVar("C", bound=Candidate)


def smallest_set(missing_nbytes: int, candidates: Iterable[C]) -> list[C] | None:
    """The candidates to take for `missing_nbytes`, in the order given, or None if all of them are not enough.

    Taken first to last until it fits; then each one the fit does not need is spared, last first.
    """
    taken: list[C] = []
    surplus = -missing_nbytes
    for candidate in candidates:
        if surplus >= 0:
            break
        taken.append(candidate)
        surplus += candidate.nbytes
    if surplus < 0:
        return None
    needed: list[C] = []
    for candidate in reversed(taken):
        if candidate.nbytes <= surplus:
            surplus -= candidate.nbytes
        else:
            needed.append(candidate)
    needed.reverse()
    return needed


@dataclass(frozen=True, slots=True)
class Releases:
    """What busy instances give back when they end, in any order: the sums of every set of them, sorted.

    `sums` is None where there are too many to weigh; then `smallest` alone counts.
    """

    smallest: int
    sums: tuple[int, ...] | None


def releases(busy_nbytes: Sequence[int]) -> Releases:
    """Weigh what busy instances will give back."""
    if len(busy_nbytes) > MOST_RELEASES_WEIGHED:
        return Releases(min(busy_nbytes), None)
    sums = {0}
    for nbytes in busy_nbytes:
        sums |= {total + nbytes for total in sums}
    return Releases(min(busy_nbytes, default=0), tuple(sorted(sums)))


def delays(missing_nbytes: int, taken_nbytes: int, awaited: Releases) -> bool:
    """Whether giving `taken_nbytes` away now would make a waiting load wait longer.

    Args:
        missing_nbytes: what the waiting load lacks now, idle instances already counted in.
        taken_nbytes: what a later load would take.
        awaited: what the busy instances will give back.

    It delays if some set of busy instances would have been enough without the taking and is not with it; where there
    are too many to weigh every set, if the smallest of them could have mattered.
    """
    missing_then_nbytes = missing_nbytes + taken_nbytes
    if missing_then_nbytes <= 0:
        return False
    if awaited.sums is None:
        return missing_nbytes <= 0 or awaited.smallest < missing_then_nbytes
    enough = bisect_left(awaited.sums, missing_nbytes)
    return enough < len(awaited.sums) and awaited.sums[enough] < missing_then_nbytes
