"""A Mac that serves does not fall asleep for want of a user."""

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("inferd.engine")

CAFFEINATE = "/usr/bin/caffeinate"
END_SECONDS = 5.0


@contextmanager
def kept_awake() -> Iterator[None]:
    """While the block runs, the system does not sleep on its own (a closed lid or the user still can make it). macOS
    alone: a child holds the assertion, and ends with this process however that ends.

    Raises:
        OSError: the child can't be started; the message names it.
    """
    try:
        child = subprocess.Popen(
            [CAFFEINATE, "-i", "-w", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the server, which then drains
        )
    except OSError as error:
        raise OSError(error.errno, f"server.prevent_sleep: {CAFFEINATE}: {error.strerror}") from None
    log.info("kept awake", extra={"pid": child.pid})
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
