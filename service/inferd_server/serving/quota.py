"""What somebody has used of so much per minute. Pure: the time is passed in, and counted in whole numbers.

A bucket holds a minute's worth and fills evenly. So within any T seconds at most limit * (1 + T / 60) is let through,
and a refusal knows to the microsecond when the same ask will be let through.
"""

MINUTE_NS = 60 * 10**9
MICROSECOND_NS = 1000


class Bucket:
    """How far a bucket is from full: `debt` in units of which `per_minute` drain in a nanosecond, so that every
    figure is whole. The limit comes with each question: it may change, and what was used stays used."""

    def __init__(self) -> None:
        self._debt = 0
        self._at_ns = 0

    def wait_seconds(self, amount: int, per_minute: int, now: float) -> float:
        """How long until `amount` may be taken; 0 if now. More than a bucket holds may be taken from a full one."""
        capacity = per_minute * MINUTE_NS
        asked = min(amount * MINUTE_NS, capacity)
        excess = self._debt_at(_ns(now), per_minute) + asked - capacity
        if excess <= 0:
            return 0.0
        wait_ns = -(-excess // per_minute)
        # A microsecond covers what the clock's floats round away.
        return (wait_ns // MICROSECOND_NS + 1) * MICROSECOND_NS / 1e9

    def take(self, amount: int, per_minute: int, now: float) -> None:
        """Take it, whatever is left: what is taken beyond has to be waited for afterwards."""
        now_ns = _ns(now)
        self._debt = self._debt_at(now_ns, per_minute) + amount * MINUTE_NS
        self._at_ns = max(self._at_ns, now_ns)

    def _debt_at(self, now_ns: int, per_minute: int) -> int:
        return max(0, self._debt - max(0, now_ns - self._at_ns) * per_minute)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
