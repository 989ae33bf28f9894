"""A call that blocks the event loop fails the test. A room joins by importing the fixture in its conftest.py."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def no_blocking() -> Iterator[None]:
    """Raises blockbuster.BlockingError in files, sockets and sleeps that the server's code calls on the loop.

    What tests and their fakes call themselves may block: some hold up the loop on purpose.
    """
    with blockbuster_ctx("inferd_server") as blockers:
        # The garbage collector may end a channel of grpc's under any line of ours, and grpc then joins a thread of its
        # own: an error in that place would leave it half ended.
        for name in ("threading.Lock.acquire", "threading.Lock.acquire_lock"):
            blockers.functions[name].deactivate()
        yield
