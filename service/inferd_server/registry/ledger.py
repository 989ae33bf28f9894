"""What is charged against the budget: one entry for each instance whose engine may hold memory.

`used_nbytes` is a fold over the entries (remembered until an entry changes), never a counter that could drift.
"""

from dataclasses import dataclass

InstanceKey = tuple[str, int]
"""A model's name and the generation of the load."""


class LedgerViolation(AssertionError):
    """An entry that would exceed the budget, or does not exist: a bug of the caller."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Bytes charged for one instance; `settled` once they were measured."""

    nbytes: int
    settled: bool = False


class Ledger:
    """Reserve, settle, release; `used_nbytes <= limit_nbytes` holds after each."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self._entries: dict[InstanceKey, LedgerEntry] = {}
        self._used: int | None = 0

    @property
    def used_nbytes(self) -> int:
        """Bytes charged, reservations included."""
        if self._used is None:
            self._used = sum(entry.nbytes for entry in self._entries.values())
        return self._used

    @property
    def reserved_nbytes(self) -> int:
        """Bytes promised to loads under way."""
        return sum(entry.nbytes for entry in self._entries.values() if not entry.settled)

    @property
    def available_nbytes(self) -> int:
        """Bytes that are not charged."""
        return self.limit_nbytes - self.used_nbytes

    def charged_nbytes(self, key: InstanceKey) -> int:
        """What one instance is charged; 0 without an entry."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.nbytes

    def keys(self) -> frozenset[InstanceKey]:
        """The instances that are charged."""
        return frozenset(self._entries)

    def reserve(self, key: InstanceKey, nbytes: int) -> None:
        """Charge a load before it starts.

        Raises:
            LedgerViolation: it does not fit, or is charged already.
        """
        if key in self._entries:
            raise LedgerViolation(f"{key} is charged already")
        self._put(key, LedgerEntry(nbytes))

    def settle(self, key: InstanceKey, measured_nbytes: int) -> None:
        """Charge the larger of reservation and measurement.

        Raises:
            LedgerViolation: the growth does not fit, or nothing was reserved.
        """
        if key not in self._entries:
            raise LedgerViolation(f"{key} was never reserved")
        self._put(key, LedgerEntry(max(self._entries[key].nbytes, measured_nbytes), settled=True))

    def release(self, key: InstanceKey) -> int:
        """Give an instance's bytes back, its engine's end being proved; returns them.

        Raises:
            LedgerViolation: nothing is charged for it.
        """
        if key not in self._entries:
            raise LedgerViolation(f"{key} is not charged")
        self._used = None
        return self._entries.pop(key).nbytes

    def _put(self, key: InstanceKey, entry: LedgerEntry) -> None:
        growth = entry.nbytes - self.charged_nbytes(key)
        if growth > self.available_nbytes:
            raise LedgerViolation(f"{key} needs {growth} bytes; {self.available_nbytes} are available")
        self._entries[key] = entry
        self._used = None
