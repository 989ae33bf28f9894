"""When waiting tokens are released to their readers: the streams of one coalesce time share its ticks. Pure."""

from dataclasses import dataclass, field

from .stream import AnyStream


@dataclass(slots=True)
class Tick:
    """The running streams of one coalesce time; `held` are those with enough tokens to be released together."""

    period_seconds: float
    members: int = 0
    ticked_at: float = float("-inf")
    held: dict[AnyStream, None] = field(default_factory=dict)  # a set that keeps its order

    @property
    def due_at(self) -> float:
        """When tokens may go out next."""
        return self.ticked_at + self.period_seconds


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
        return min((tick.due_at for tick in self._ticks.values() if tick.held), default=None)
