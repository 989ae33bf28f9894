"""Waiting for a lease while telling what is waited for; gives the lease back if the waiter leaves in between."""

import asyncio

from inferd_server.core.generation import Waiting
from inferd_server.registry.lease import Lease
from inferd_server.registry.registry import LeaseRequest, Registry


class Acquiring:
    """One ticket in the registry, owned by one request.

    `next` yields what is waited for whenever that changes (only the latest: a slow reader misses steps in between),
    then None once the outcome is there; `take` hands the lease over. `close` leaves the queue, or gives back a lease
    that nobody took, however the two race.
    """

    def __init__(self, registry: Registry, request: LeaseRequest, *, tell_waiting: bool) -> None:
        self._news = asyncio.Event()
        self._latest: Waiting | None = None
        note = self._note if tell_waiting else None
        self._task = asyncio.ensure_future(registry.acquire(request, note))
        self._task.add_done_callback(lambda _: self._news.set())
        self._taken = False

    def _note(self, waiting: Waiting) -> None:
        if waiting != self._latest:
            self._latest = waiting
            self._news.set()

    async def next(self) -> Waiting | None:
        """The next change, or None when the outcome is there."""
        await self._news.wait()
        self._news.clear()
        if self._task.done():
            return None
        return self._latest

    def take(self) -> Lease:
        """The lease; raises what the registry raised, or CancelledError after `close`."""
        lease = self._task.result()
        self._taken = True
        return lease

    def close(self) -> None:
        """Leave. Idempotent, synchronous."""
        if not self._taken:
            self._task.cancel()
            self._task.add_done_callback(_release)


def _release(task: "asyncio.Task[Lease]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().release()
