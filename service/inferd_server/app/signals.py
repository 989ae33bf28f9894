"""What the process's signals mean: SIGTERM and SIGINT stop it, a second one ends it at once, SIGHUP reloads."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator

log = logging.getLogger("inferd.app")


@contextlib.contextmanager
def signals(stop: asyncio.Event, reload: Callable[[], None]) -> Iterator[None]:
    """Listen to them on the running loop.

    Args:
        stop: set by the first signal to stop.
        reload: called at each hangup.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _on_signal(number: int, stop: asyncio.Event) -> None:
    if stop.is_set():
        log.warning("second signal, exiting at once")
        logging.shutdown()
        os._exit(128 + number)
    log.info("stopping", extra={"signal": signal.Signals(number).name})
    stop.set()
