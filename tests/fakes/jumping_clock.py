"""A faulty server (fakes/faulty_server.py) whose wall clock jumps at each SIGUSR2: a day ahead, a day back, and right.

Only what Python code asks for is moved, as far as it is the time of day. grpc's own conversions between its clocks move
both ends in a real jump, so they keep the true one here.
"""

import signal
import time
from itertools import cycle
from types import SimpleNamespace
from typing import Any

DAY_SECONDS = 86_400.0
JUMPS = cycle((DAY_SECONDS, -DAY_SECONDS, 0.0))

_true_time, _true_time_ns = time.time, time.time_ns
_ahead_seconds = 0.0


def _jump(*_: Any) -> None:
    global _ahead_seconds  # noqa: PLW0603 - a clock is a global thing
    _ahead_seconds = next(JUMPS)


def main() -> None:
    from grpc._cython import cygrpc

    from fakes import faulty_server

    cygrpc.time = SimpleNamespace(**{**vars(time), "time": _true_time, "time_ns": _true_time_ns})
    time.time = lambda: _true_time() + _ahead_seconds
    time.time_ns = lambda: _true_time_ns() + int(_ahead_seconds * 1e9)
    signal.signal(signal.SIGUSR2, _jump)
    faulty_server.main()


if __name__ == "__main__":
    main()
