"""One loaded model on the event loop: who gets a row, whose tokens go where, how everything ends."""

import asyncio
import time
from collections.abc import Callable

from inferd_server.core.errors import InferdError, engine_failed, model_unloaded, slow_consumer
from inferd_server.core.model import Clock, EngineSettings, Interrupted, Loading, ResidentStatistics
from inferd_server.core.observer import UNOBSERVED, Observer
from inferd_server.core.work import Piece, Work

from .booking import Booking
from .coalescing import Ticks
from .memory import WorkMemory
from .messages import BoundPrefixCache, Died, HandBack, HandedBack, Insert, Inserted, Lost, Rejected, Remove, Report
from .places import Places
from .queue import WaitQueue
from .stream import MAX_WAITING_TOKENS, AnyStream, Stream
from .threads import Threads
from .worker import OpenEngine, Worker, logger


class _OwnLoading:
    """The caller's Loading, which the caller's task may also abandon by being cancelled."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self.is_cancelled = False

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        self._loading.progress(done_nbytes, total_nbytes)

    @property
    def abandoned(self) -> bool:
        return self.is_cancelled or self._loading.abandoned


class Scheduler:
    """One loaded model: a `core.model.Resident`. Every method is called on the event loop; made by `open`.

    A stream owns a row from its admission until its end reached the loop or it was closed; the worker applies the
    removal before the insertion of whoever got the row next, so the engine never holds more than `rows` sequences.
    A row is given only with the memory that the sequence may need up to its last token.
    """

    def __init__(
        self, settings: EngineSettings, on_death: Callable[[InferdError], None], clock: Clock, memory: WorkMemory
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._booking: Booking  # once the engine is open
        self._on_death = on_death
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._worker: Worker
        self._rows = 0
        self._submissions = 0
        self._waiting: WaitQueue[AnyStream] = WaitQueue()
        self._places = Places(self._waiting)
        self._running: dict[int, AnyStream] = {}  # by number, from admission
        self._emitting: dict[int, AnyStream] = {}  # by the engine's uid, from the Inserted report
        self._ticks = Ticks(settings.stream_interval)
        self._tick_timer: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._interrupted_by: str | None = None
        self._refusal: InferdError | None = None  # after abort, death or close
        self._is_dead = False
        self._is_closing = False

    @classmethod
    async def open(
        cls,
        settings: EngineSettings,
        loading: Loading,
        open_engine: OpenEngine,
        on_death: Callable[[InferdError], None],
        *,
        end_thread: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
        memory: WorkMemory | None = None,
        threads: Threads | None = None,
        observer: Observer = UNOBSERVED,
    ) -> "Scheduler":
        """Start the thread that opens the engine and owns it until `close`.

        Args:
            on_death: called once on the loop if the engine dies or is stuck (`_watch`).
            memory: what the process's models share for their work; None: no limit.
            threads: whose thread owns the engine; None: one of its own.
            end_thread: the last call on a thread of its own, after `Engine.close`, or after `open_engine` raised.

        Raises:
            LoadAbandoned, InferdError: as `open_engine` raised it, once the thread has ended; any other exception of
                it becomes MODEL_LOAD_FAILED. A cancelled caller abandons the load and still awaits the thread's end.
        """
        scheduler = cls(settings, on_death, clock, memory or WorkMemory())
        own_loading = _OwnLoading(loading)
        worker = scheduler._worker = Worker(settings, clock, scheduler._deliver, end_thread, threads, observer)
        worker.start(open_engine, own_loading)
        try:
            await asyncio.shield(worker.opened)
        except asyncio.CancelledError:
            own_loading.is_cancelled = True
            worker.stop()
            await _outlast(worker)
            raise
        if worker.failure is not None:
            await worker.join()
            raise worker.failure
        scheduler._join_memory()
        scheduler._rows = min(worker.max_rows, settings.max_batch_size if settings.continuous_batching else 1)
        worker.ended.add_done_callback(lambda _: scheduler._end_work())
        return scheduler

    @property
    def weights_nbytes(self) -> int:
        """Parameter bytes, measured after the load."""
        return self._worker.weights_nbytes

    def statistics(self) -> ResidentStatistics:
        """A frozen snapshot."""
        pending_since = self._worker.busy_since
        return ResidentStatistics(
            running=len(self._running),
            waiting=len(self._waiting),
            cache_nbytes=self._worker.cache_nbytes,
            step_age_seconds=0.0 if pending_since is None else self._clock() - pending_since,
        )

    def submit(
        self,
        request: Work,
        *,
        priority: int = 0,
        coalesce_seconds: float = 0.010,
        tell_position: bool = False,
    ) -> AnyStream:
        """Queue a sequence; a free row is its own at once. The caller closes the stream (`aclosing`), always.

        Args:
            tell_position: that `Stream.next_position` will be asked.

        Raises:
            Interrupted: after `interrupt`, until `resume`.
            InferdError: after `abort`, death or `close`; OUT_OF_MEMORY if it would not fit even alone.
        """
        if self._refusal is not None:
            raise self._refusal.with_facts()
        if self._interrupted_by is not None:
            raise Interrupted(self._interrupted_by)
        if (misfit := self._booking.misfit(request)) is not None:
            raise misfit
        self._submissions += 1
        stream: AnyStream = Stream(self._submissions, request, coalesce_seconds, self._leave)
        self._waiting.push(stream, priority, self._clock())
        self._places.note_change()
        self._admit()
        if tell_position and not stream.is_admitted:
            self._places.add(stream)
        return stream

    def interrupt(self, by_model: str) -> None:
        """Hand every request back: each stream, behind all that the engine emitted for it, raises `Interrupted`; so
        does each later submit, until `resume`. Running ones end after the step under way. Idempotent."""
        if self._interrupted_by is not None or self._refusal is not None:
            return
        self._interrupted_by = by_model
        for stream in self._waiting.drain():
            stream.finish(Interrupted(by_model))
        self._places.clear()
        self._booking.ask_no_more()
        self._worker.send(HandBack(by_model))

    def resume(self) -> None:
        """Admit again after `interrupt`."""
        self._interrupted_by = None

    def abort(self, error: InferdError) -> None:
        """End every request with `error`, behind what has arrived for it; later submits raise it too."""
        self._refusal = self._refusal or error
        self._drain()
        self._end_all(error)

    async def close(self) -> None:
        """Close the engine and await the thread's end. The end goes on if the caller leaves."""
        self._is_closing = True
        self.abort(model_unloaded(self._settings.name))
        self._worker.stop()
        await self._worker.join()
        self._stop_timers()

    # --- rows

    def _admit(self) -> None:
        self._give_memory_back()
        self._end_misfits()
        while (
            self._waiting
            and len(self._running) < self._rows
            and self._booking.take(len(self._running), self._waiting.first().request)
        ):
            stream = self._waiting.pop()
            self._places.note_change()
            self._running[stream.number] = stream
            self._ticks.join(stream)
            self._worker.send(Insert(stream.number, stream.request))
            stream.admit()
        if not self._waiting:
            self._booking.ask_no_more()
        if self._running and self._watchdog is None:
            self._watch()

    def _leave(self, stream: AnyStream) -> None:
        """The reader closed its stream."""
        if stream.number in self._running:
            self._evict(stream)
        elif self._waiting.remove(stream):
            self._places.note_change()
        else:
            return
        self._admit()  # a row or memory is free, or who waited for memory in front of others has gone

    def _evict(self, stream: AnyStream) -> None:
        self._free(stream)
        self._worker.send(Remove(stream.number))

    def _free(self, stream: AnyStream) -> None:
        del self._running[stream.number]
        self._booking.has_freed = True
        self._ticks.leave(stream)
        if stream.uid is not None:
            del self._emitting[stream.uid]

    def _end(self, stream: AnyStream, error: Exception | None) -> None:
        self._free(stream)
        stream.finish(error)

    def _end_all(self, error: InferdError) -> None:
        for stream in self._waiting.drain():
            stream.finish(error.with_facts())
        self._places.clear()
        for stream in list(self._running.values()):
            self._evict(stream)
            stream.finish(error.with_facts())  # one copy for each: raised ones gather tracebacks
        self._give_memory_back()
        self._booking.ask_no_more()

    # --- memory

    def _join_memory(self) -> None:
        def bound(nbytes: int) -> None:
            self._worker.send(BoundPrefixCache(nbytes))

        def ask_again() -> None:
            self._loop.call_soon(self._admit)

        share = self._memory.join(self._settings.prefix_cache_nbytes, bound, ask_again)
        self._booking = Booking(self._settings.name, self._worker.footprint, self._memory, share)

    def _end_misfits(self) -> None:
        """Whoever came when the limit was larger and fits no more would wait, and hold up others, for ever."""
        if not self._booking.has_new_limit():
            return
        for stream in self._waiting:
            if (misfit := self._booking.misfit(stream.request)) is not None:
                self._waiting.remove(stream)
                self._places.note_change()
                stream.finish(misfit)

    def _give_memory_back(self) -> None:
        if self._booking.has_freed and not self._is_dead:  # a stuck step holds what it has
            self._booking.give_back([stream.request for stream in self._running.values()])

    # --- what the worker reports

    def _deliver(self) -> None:
        self._worker.is_quiet = False  # before the drain, so that nothing it misses goes unannounced
        self._drain()
        self._release()

    def _drain(self) -> None:
        outbox = self._worker.outbox
        while outbox:
            report = outbox.popleft()
            if isinstance(report, list):
                self._hand_over(report)
            else:
                self._settle(report)
        self._admit()

    def _hand_over(self, tokens: list[Piece]) -> None:
        for token in tokens:
            stream = self._emitting.get(token.uid)
            if stream is None:
                continue  # closed meanwhile
            if token.failure:
                logger.error("a sequence of model %r failed: %s", self._settings.name, token.failure)
                self._end(stream, engine_failed(self._settings.name))
            elif not stream.push(token):
                stream.discard()
                self._evict(stream)
                stream.finish(slow_consumer(MAX_WAITING_TOKENS))
            elif token.ended:
                self._end(stream, None)
            else:
                self._ticks.hold(stream)

    def _settle(self, report: Report) -> None:
        match report:
            case Inserted(number, uid):
                if stream := self._running.get(number):
                    stream.uid = uid
                    self._emitting[uid] = stream
            case Rejected(number, error):
                if stream := self._running.get(number):
                    self._end(stream, error)
            case HandedBack(by_model):
                for stream in list(self._emitting.values()):
                    self._end(stream, Interrupted(by_model))
            case Lost():
                for stream in list(self._emitting.values()):
                    self._end(stream, engine_failed(self._settings.name))
            case Died():
                self._die()

    def _release(self) -> None:
        """Release what is due, and set the one timer for what is due next."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        now = self._clock()
        due_at = self._ticks.release(now)
        if self._ticks.is_costing:
            self._loop.call_soon(self._note_cost)  # behind the readers that were just woken
        if due_at is not None:
            self._tick_timer = self._loop.call_later(due_at - now, self._deliver)
            self._worker.is_quiet = self._ticks.is_shared

    def _note_cost(self) -> None:
        self._ticks.note_cost(self._clock())

    # --- death

    def _end_work(self) -> None:
        """The thread has ended, and with it everything that took memory."""
        self._booking.leave()
        self._die()

    def _watch(self) -> None:
        """The watchdog: one timer, alive while there is work, that looks again when the step under way is overdue.

        Overdue is what took longer than `step_timeout_seconds` beyond the time for what it may prefill (allowance.py).
        """
        self._watchdog = None
        timeout = self._settings.step_timeout_seconds
        limit = timeout + self._worker.allowance.seconds
        since = self._worker.busy_since  # read last: at least as new as the step that the limit is for
        if self._is_dead or (since is None and not self._running):
            return
        left = limit if since is None else since + limit - self._clock()
        if left > 0:
            # Never later than the next step, which may be allowed less, could be overdue.
            self._watchdog = self._loop.call_later(min(left, timeout), self._watch)
            return
        logger.error("model %r is stuck: no step ended for %g s", self._settings.name, limit)
        self._die()

    def _die(self) -> None:
        """The engine died or is stuck, or (when the thread ended) neither and this has nothing left to do."""
        if self._is_dead or self._is_closing:
            return
        self._is_dead = True
        error = engine_failed(self._settings.name)
        self._refusal = error
        self._loop.call_soon(self._on_death, error.with_facts())  # before any stream's `on_failure`
        self._end_all(error)
        self._worker.stop()
        self._stop_timers()

    def _stop_timers(self) -> None:
        for timer in (self._tick_timer, self._watchdog):
            if timer is not None:
                timer.cancel()
        self._tick_timer = self._watchdog = None


async def _outlast(worker: Worker) -> None:
    """Await the worker's end even if cancelled again: a thread is never left behind."""
    while not worker.ended.done():
        try:
            await worker.join()
        except asyncio.CancelledError:
            continue
