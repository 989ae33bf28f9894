"""Seconds to protobuf's times and back."""

import math

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

NANOS = 1_000_000_000
MAX_DURATION_SECONDS = 315_576_000_000
"""The most that google.protobuf.Duration allows: about 10,000 years."""


def to_duration(seconds: float) -> Duration:
    """`seconds` >= 0 to the nearest nanosecond; more than a Duration holds becomes the most it holds."""
    whole, nanos = divmod(round(min(seconds, MAX_DURATION_SECONDS) * NANOS), NANOS)
    return Duration(seconds=whole, nanos=nanos)


def to_seconds(duration: Duration) -> float:
    """Seconds of a valid duration."""
    return duration.seconds + duration.nanos / NANOS


def is_valid(duration: Duration) -> bool:
    """Whether it keeps protobuf's own rules: range, and nanos of the sign of seconds."""
    if abs(duration.seconds) > MAX_DURATION_SECONDS or abs(duration.nanos) >= NANOS:
        return False
    return duration.seconds * duration.nanos >= 0


def to_timestamp(unix_seconds: float) -> Timestamp:
    """A moment in seconds since 1970."""
    whole = math.floor(unix_seconds)
    # Whole seconds apart, since a float of today's moment times a billion has lost its nanoseconds.
    return Timestamp(seconds=whole, nanos=min(round((unix_seconds - whole) * NANOS), NANOS - 1))
