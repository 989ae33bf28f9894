"""The server's phases, and who wants to know when they change (docs/semantics.md §9)."""

from collections.abc import Callable
from enum import IntEnum


class Phase(IntEnum):
    """In order; a server only ever moves forward."""

    STARTING = 0
    """The port is open, preloads run; no inference yet."""
    READY = 1
    LAME_DUCK = 2
    """About to drain: readiness is off, everything is still served (endpoints take seconds to notice)."""
    DRAINING = 3
    """No new work; running work goes on."""
    STOPPED = 4
    """What still ran was cut."""


class Lifecycle:
    """Holds the phase. One writer: app."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._callbacks: list[Callable[[Phase], None]] = []

    @property
    def phase(self) -> Phase:
        """The phase now."""
        return self._phase

    def advance(self, phase: Phase) -> None:
        """Move forward and tell the subscribers; a step back or to the same phase is ignored, so that a late
        'ready' of a server that is stopping already does no harm."""
        if phase <= self._phase:
            return
        self._phase = phase
        for callback in list(self._callbacks):
            callback(phase)

    def subscribe(self, callback: Callable[[Phase], None]) -> Callable[[], None]:
        """Call `callback` at each later change, on the event loop; returns what ends that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None
