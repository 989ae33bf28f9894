"""Where a request's time goes: queue, load, prefill, decode. Reads the clock it is given."""

from inferd_server.core.generation import Timing
from inferd_server.core.model import Clock


class Stopwatch:
    """Starts at construction. The parts add up to the total: decode is what the other parts leave."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived = clock()
        self._waiting_since: float | None = self._arrived
        self._prefill_since: float | None = None
        self._last_token = self._arrived
        self._queue = 0.0
        self._load = 0.0
        self._prefill = 0.0

    def loaded(self, seconds: float) -> None:
        """Of the wait now ending, `seconds` were the model's load."""
        self._load += seconds
        self._queue -= seconds

    def admitted(self) -> None:
        """A row was given: the wait is over, prefill begins."""
        now = self._clock()
        if self._waiting_since is not None:
            self._queue += now - self._waiting_since
            self._waiting_since = None
        self._prefill_since = now

    def token(self) -> float:
        """Tokens arrived; returns how long after the last ones, or after the start."""
        now = self._clock()
        gap, self._last_token = now - self._last_token, now
        if self._prefill_since is not None:
            self._prefill += now - self._prefill_since
            self._prefill_since = None
        return gap

    def interrupted(self) -> None:
        """The row was taken back; what prefill had begun is lost time in the queue."""
        if self._waiting_since is None:
            self._waiting_since = self._clock() if self._prefill_since is None else self._prefill_since
        self._prefill_since = None

    def timing(self) -> Timing:
        """The parts, in seconds, up to the last token."""
        total = self._last_token - self._arrived
        queue = max(self._queue, 0.0)
        decode = max(total - queue - self._load - self._prefill, 0.0)
        return Timing(queue=queue, load=self._load, prefill=self._prefill, decode=decode, total=total)
