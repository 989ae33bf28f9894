"""Threads that own engines, one after the other.

A thread is used again, since MLX gives back nothing of what it made for one: on its CPU backend every ended thread
left a native thread and about 50 KB behind, so a server that swaps models all day would run out of threads.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

Job = Callable[[], None]


class _Thread(threading.Thread):
    """A thread that does what comes into its inbox, until None comes. Between two jobs it is parked."""

    def __init__(self, park: Callable[["_Thread"], None], at_end: Callable[[], None]) -> None:
        super().__init__(daemon=False)
        self.inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._park = park
        self._at_end = at_end

    def run(self) -> None:
        try:
            while self._do_next():
                self.name = "inferd-parked"
                self._park(self)
        finally:
            self._at_end()

    def _do_next(self) -> bool:
        # A frame of its own: a parked thread holds nothing of the job that is done.
        job = self.inbox.get()
        if job is not None:
            job()
        return job is not None


class Threads:
    """As many threads as there ever were engines at a time. `start` and `close` are called by one owner."""

    def __init__(self, end_thread: Callable[[], None] = lambda: None) -> None:
        """`end_thread` is the last call on each thread."""
        self._end_thread = end_thread
        self._every: list[_Thread] = []
        self._parked: deque[_Thread] = deque()
        self._is_closed = False

    def start(self, name: str, job: Job) -> None:
        """Run a job on a thread that runs no other. It must not raise."""
        thread = self._parked.pop() if self._parked else self._begin()
        thread.name = name
        thread.inbox.put(job)

    def _begin(self) -> _Thread:
        thread = _Thread(self._park, self._end_thread)
        self._every.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        """End every thread after its job and wait for them all; blocking, idempotent."""
        self._is_closed = True
        self._dismiss()
        for thread in self._every:
            thread.join()

    def _park(self, thread: _Thread) -> None:
        self._parked.append(thread)
        if self._is_closed:  # perhaps before this one was parked
            self._dismiss()

    def _dismiss(self) -> None:
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._parked.pop().inbox.put(None)
