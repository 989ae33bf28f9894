"""A loop that is stuck is told of while it is, with where."""

import asyncio
import logging
import threading
import time

import pytest

from inferd_server.telemetry.loop_watch import LoopWatch
from support.streams import eventually


def hold_up(released: threading.Event) -> None:
    released.wait(20)


async def test_a_stuck_loop_is_told_of_while_it_is_and_once_it_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            released.set()  # only the line itself ends what it tells of

    handler = Release()
    log = logging.getLogger("inferd.telemetry")
    log.addHandler(handler)
    try:
        with caplog.at_level("WARNING"), LoopWatch(stuck_seconds=0.1):
            await asyncio.sleep(0.1)
            began = time.monotonic()
            hold_up(released)
            assert time.monotonic() - began < 10
            await eventually(lambda: len(caplog.records) == 2)
    finally:
        log.removeHandler(handler)
    stuck, runs_again = caplog.records
    assert "hold_up" in stuck.__dict__["stack"]
    assert runs_again.__dict__["stuck_seconds"] > 0.1


async def test_a_loop_that_runs_is_not_told_of_and_the_watch_ends(caplog: pytest.LogCaptureFixture) -> None:
    with LoopWatch(stuck_seconds=0.2) as watch:
        await asyncio.sleep(0.6)
    assert caplog.records == []
    await asyncio.to_thread(watch._thread.join, 10)
    assert not watch._thread.is_alive()
