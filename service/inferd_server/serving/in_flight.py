"""All requests in flight, of every kind: their ids, the bound on how many wait, cancel, drain."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

from inferd_server.core.errors import (
    InferdError,
    cancelled_by_request,
    queue_full,
    request_id_in_use,
    server_draining,
    server_shutdown,
)
from inferd_server.core.model import ModelEntry

MAX_PREPARING = 4096
"""Prompts being tokenized at a time; apart from max_queue, since most of them will find a free row."""


class Stage(Enum):
    """Where a request stands, for the bound of the queue and for the drain."""

    PREPARING = 1
    WAITING = 2
    RUNNING = 3
    INTERRUPTED = 4


class Flight(Protocol):
    """One request in flight."""

    @property
    def stage(self) -> Stage:
        """Where it stands."""

    @property
    def entry(self) -> ModelEntry:
        """Its model."""

    @property
    def held_nbytes(self) -> int:
        """Bytes of media that it keeps until its end."""

    def end(self, error: InferdError) -> None:
        """End it from outside with `error`, wherever it stands."""


class InFlight:
    """The table of requests in flight. Lives on the event loop.

    A request is known by its caller's id and its own: callers know nothing of each other's requests.
    """

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._flights: dict[tuple[str, str], Flight] = {}
        self._changed = asyncio.Event()
        self._refusal: InferdError | None = None

    def __len__(self) -> int:
        """How many requests are in flight, waiting ones included."""
        return len(self._flights)

    def held_nbytes(self) -> Iterator[int]:
        """Bytes of media that each of them holds."""
        return (flight.held_nbytes for flight in self._flights.values())

    def check_open(self) -> None:
        """Raise SERVER_DRAINING after `refuse`."""
        if self._refusal is not None:
            raise self._refusal.with_facts()

    def check_new(self, request_id: str, caller_id: str = "") -> None:
        """Raise REQUEST_ID_IN_USE, or QUEUE_FULL while too many are being prepared."""
        if (caller_id, request_id) in self._flights:
            raise request_id_in_use(request_id)
        if sum(other.stage is Stage.PREPARING for other in self._flights.values()) >= MAX_PREPARING:
            raise queue_full("", MAX_PREPARING)

    @contextmanager
    def holding(self, request_id: str, flight: Flight, caller_id: str = "") -> Iterator[None]:
        """A request that passed `check_new` is in flight in this block."""
        self._flights[caller_id, request_id] = flight
        try:
            yield
        finally:
            del self._flights[caller_id, request_id]
            self._changed.set()

    def check_queue(self, flight: Flight) -> None:
        """Refuse one more waiting request than the bounds allow. Asked only when a request has to wait: one that finds
        its model LOADED and a free row is never refused, whoever waits for other models.

        Raises:
            InferdError: QUEUE_FULL.
        """
        waiting = [other for other in self._flights.values() if other.stage is Stage.WAITING]
        entry = flight.entry
        if sum(other.entry.name == entry.name for other in waiting) >= entry.max_queue:
            raise queue_full(entry.name, entry.max_queue)
        if len(waiting) >= self._max_queue:
            raise queue_full("", self._max_queue)

    def cancel(self, request_id: str, caller_id: str = "") -> bool:
        """End the caller's request of this id with CANCELLED_BY_REQUEST; whether there was one."""
        flight = self._flights.get((caller_id, request_id))
        if flight is None:
            return False
        flight.end(cancelled_by_request(request_id))
        return True

    def refuse(self) -> None:
        """From now on nothing new starts and what has not started ends, both with SERVER_DRAINING; what runs, or was
        interrupted while running, goes on."""
        self._refusal = server_draining()
        for flight in list(self._flights.values()):
            if flight.stage in {Stage.PREPARING, Stage.WAITING}:
                flight.end(server_draining())

    async def drain(self, timeout_seconds: float) -> int:
        """`refuse`, then wait until nothing is in flight; what is left after the timeout ends with SERVER_SHUTDOWN.
        Returns how many were cut."""
        self.refuse()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._empty()
        except TimeoutError:
            return self.cut()
        return 0

    def cut(self) -> int:
        """End everything in flight with SERVER_SHUTDOWN; returns how many there were."""
        left = list(self._flights.values())
        for flight in left:
            flight.end(server_shutdown())
        return len(left)

    async def _empty(self) -> None:
        while self._flights:
            self._changed.clear()
            await self._changed.wait()
