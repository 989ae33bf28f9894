"""Threads are used again, hold nothing of a job that is done, and end when they are told to."""

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from inferd_server.scheduler.threads import Threads


def run(threads: Threads, job: Callable[[], None] = lambda: None) -> threading.Thread:
    """Run a job to its end; the thread that ran it."""
    ran: SimpleQueue[threading.Thread] = SimpleQueue()

    def whole() -> None:
        job()
        ran.put(threading.current_thread())

    threads.start("job", whole)
    thread = ran.get(timeout=5)
    deadline = time.monotonic() + 5
    while not threads._parked and time.monotonic() < deadline:
        time.sleep(0.001)
    return thread


def test_jobs_one_after_the_other_run_on_one_thread() -> None:
    threads = Threads()
    assert len({run(threads).ident for _ in range(20)}) == 1
    threads.close()


def test_jobs_at_the_same_time_run_on_threads_of_their_own() -> None:
    threads = Threads()
    meeting = threading.Barrier(4, timeout=5)
    for _ in range(3):
        threads.start("job", lambda: meeting.wait() and None)
    meeting.wait()
    threads.close()


def test_closed_ends_every_thread_after_the_last_call_on_it() -> None:
    ended: list[int] = []
    threads = Threads(lambda: ended.append(threading.get_ident()))
    thread = run(threads)
    assert ended == []
    threads.close()
    assert not thread.is_alive()
    assert ended == [thread.ident]


def test_closing_waits_for_a_job_under_way_and_ends_its_thread() -> None:
    threads = Threads()
    begun, may_end = threading.Event(), threading.Event()
    seen: list[threading.Thread] = []

    def job() -> None:
        seen.append(threading.current_thread())
        begun.set()
        may_end.wait(5)

    threads.start("job", job)
    assert begun.wait(5)
    threading.Timer(0.05, may_end.set).start()
    threads.close()
    assert may_end.is_set()
    assert not seen[0].is_alive()


def test_a_parked_thread_holds_nothing_of_its_last_job() -> None:
    class Held:
        def __call__(self) -> None:
            pass

    threads = Threads()
    held = Held()
    gone = weakref.ref(held)
    thread = run(threads, held)
    del held
    assert thread.is_alive()
    assert gone() is None
    threads.close()
