"""When waiting tokens are released to their readers: the streams of one coalesce time share its ticks. Pure."""

from dataclasses import dataclass, field

from .stream import AnyStream

RELEASES_SHARE = 0.15
"""Of the time, what the loop may spend on the readers of one tick before ticks become rarer: a write costs the same for
any number of tokens, and the interpreter's lock is the engine's too."""
MOST_STRETCH = 4.0
"""A coalesce time gets at most so many times as long for that."""


@dataclass(slots=True)
class Tick:
    """The running streams of one coalesce time; `held` are those with enough tokens to be released together.

    Attributes:
        cost_seconds: what the readers took of the loop at the last tick.
        is_costing: they have not had their turn yet.
    """

    period_seconds: float
    members: int = 0
    ticked_at: float = float("-inf")
    cost_seconds: float = 0.0
    is_costing: bool = False
    held: dict[AnyStream, None] = field(default_factory=dict)  # a set that keeps its order

    @property
    def due_at(self) -> float:
        """When tokens may go out next."""
        stretched = min(self.cost_seconds / RELEASES_SHARE, MOST_STRETCH * self.period_seconds)
        return self.ticked_at + max(self.period_seconds, stretched)


class Ticks:
    """All ticks of one scheduler.

    A tick that is overdue when a token comes releases it at once: so with steps longer than the coalesce time every
    token goes out by itself. Args: `interval_tokens`: least tokens per release, but for the first and the last.
    """

    def __init__(self, interval_tokens: int) -> None:
        self._interval_tokens = interval_tokens
        self._ticks: dict[float, Tick] = {}

    @property
    def is_shared(self) -> bool:
        """Whether all streams follow one tick: what is due then is due for all."""
        return len(self._ticks) == 1

    def join(self, stream: AnyStream) -> None:
        """A stream got its row."""
        tick = self._ticks.setdefault(stream.coalesce_seconds, Tick(stream.coalesce_seconds))
        tick.members += 1

    def leave(self, stream: AnyStream) -> None:
        """A stream that joined gave its row back."""
        tick = self._ticks[stream.coalesce_seconds]
        tick.held.pop(stream, None)
        tick.members -= 1
        if not tick.members:
            del self._ticks[stream.coalesce_seconds]

    def hold(self, stream: AnyStream) -> None:
        """A token of this stream waits; the first one of all goes out at once."""
        if not stream.has_emitted:
            stream.release()
        elif stream.waiting_tokens >= self._interval_tokens:
            self._ticks[stream.coalesce_seconds].held[stream] = None

    def release(self, now: float) -> float | None:
        """Release what is due; returns when something held is due next, or None."""
        for tick in self._ticks.values():
            if tick.held and tick.due_at <= now:
                for stream in tick.held:
                    stream.release()
                tick.held.clear()
                tick.ticked_at = now
                tick.is_costing = tick.period_seconds > 0
        return min((tick.due_at for tick in self._ticks.values() if tick.held), default=None)

    @property
    def is_costing(self) -> bool:
        """Whether readers who were given something have not had their turn yet."""
        return any(tick.is_costing for tick in self._ticks.values())

    def note_cost(self, now: float) -> None:
        """Every reader had its turn."""
        for tick in self._ticks.values():
            if tick.is_costing:
                tick.is_costing = False
                tick.cost_seconds = now - tick.ticked_at
