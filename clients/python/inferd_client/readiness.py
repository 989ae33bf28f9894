"""A server that starts says when to ask again: a command does so, where a library leaves it to its caller."""

import time
from collections.abc import Callable
from typing import TypeVar

from inferd_client import terminal
from inferd_client.errors import Unavailable

Answer = TypeVar("Answer")

STARTING_SECONDS = 120.0
"""Longest wait of a command without `--timeout`: a preload of many GiB takes a minute."""


def when_ready(ask: Callable[[], Answer], timeout: float | None) -> Answer:
    """What `ask` answers, asked again and again while the server's preloads are under way.

    Args:
        ask: a call that has no effect while the server starts.
        timeout: seconds that the wait may take; None: STARTING_SECONDS.

    Raises:
        InferdError: of the last try.
    """
    end = time.monotonic() + (STARTING_SECONDS if timeout is None else timeout)
    is_told = False
    while True:
        try:
            return ask()
        except Unavailable as error:
            pause = error.retry_after or 1.0
            if error.reason != "SERVER_STARTING" or time.monotonic() + pause > end:
                raise
        if not is_told:
            terminal.write_aside("the server starts; waiting until it is ready")
            is_told = True
        time.sleep(pause)
