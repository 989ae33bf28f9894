"""The thread that owns one engine: it opens, feeds, steps and closes it, and reports in order to the event loop.

Commands go in through one queue and are applied in their order between two steps, reports come out through another.
The few plain attributes that both sides see have one writer each.
"""

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from inferd_server.core.errors import InferdError, engine_failed, model_load_failed
from inferd_server.core.model import Clock, EngineSettings, LoadAbandoned, Loading
from inferd_server.core.observer import UNOBSERVED, Observer
from inferd_server.core.work import Piece, Work
from inferd_server.engine.engine import EngineOf, StepResultOf
from inferd_server.engine.memory import Footprint, WorkFootprint

from .allowance import PrefillAllowance
from .messages import (
    BoundPrefixCache,
    Command,
    Died,
    HandBack,
    HandedBack,
    Insert,
    Inserted,
    Lost,
    Rejected,
    Remove,
    Report,
    Wake,
)
from .threads import Threads

logger = logging.getLogger("inferd.scheduler")

OpenEngine = Callable[[EngineSettings, Loading], EngineOf[Any, Any]]

MAX_FAILED_STEPS = 3
MAX_QUIET_REPORTS = 64
"""However long the coalesce time, the loop sees tokens after so many steps: its streams' bounds hold."""
CACHE_READ_SECONDS = 0.1


class Worker:
    """One owned, non-daemon thread and its engine.

    Read on the loop: `opened` and `ended` (futures), `failure` (why it did not open), `weights_nbytes`, `max_rows`,
    `footprint`, `cache_nbytes`, `busy_since` (start of the step under way, None while nothing is asked of it),
    `allowance` (of the step under way; written before it begins and after `busy_since`).
    Written on the loop: `is_quiet`: it will look into `outbox` in time by itself; only urgent reports need a call.
    """

    def __init__(
        self,
        settings: EngineSettings,
        clock: Clock,
        on_report: Callable[[], None],
        end_thread: Callable[[], None],
        threads: Threads | None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_report = on_report
        self._threads = threads or Threads(end_thread)
        self._owns_threads = threads is None
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._engine: EngineOf[Any, Any]  # never a local variable: frames outlive their calls in tracebacks
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._uids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._fresh: dict[int, Work] = {}  # by uid, those without a first token yet
        self._failed_steps = 0
        self._cache_read_at = float("-inf")
        self._is_stopping = False
        self._is_announced = False
        self.outbox: deque[Report] = deque()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.failure: Exception | None = model_load_failed(settings.name, "the load ended unexpectedly")
        self.weights_nbytes = 0
        self.max_rows = 0
        self.footprint: WorkFootprint = Footprint()
        self.cache_nbytes = 0
        self.busy_since: float | None = None
        self.allowance = PrefillAllowance(settings.prefill_step_size)
        self.is_quiet = False

    # --- on the event loop

    def start(self, open_engine: OpenEngine, loading: Loading) -> None:
        """Start the thread; `opened` is done when the engine is open, or (with `failure`) when the thread has ended."""
        self._threads.start(f"inferd-{self._settings.name}", lambda: self._run(open_engine, loading))

    def send(self, command: Command) -> None:
        """Hand a command over; applied in order, before the next step."""
        self._inbox.put(command)

    def stop(self) -> None:
        """Close the engine after the step under way and end the thread; idempotent."""
        self._is_stopping = True
        self._inbox.put(Wake())

    async def join(self) -> None:
        """Wait until the thread has ended, without blocking the loop; cancelling it cancels the wait alone."""
        await asyncio.shield(self.ended)
        if self._owns_threads:
            await asyncio.to_thread(self._threads.close)  # `ended` was its last act: this returns at once

    def _report(self) -> None:
        self._is_announced = False  # before the outbox is drained, so that no later report goes unannounced
        self._on_report()

    # --- on the thread

    def _run(self, open_engine: OpenEngine, loading: Loading) -> None:
        try:
            if self._open(open_engine, loading):
                try:
                    self._serve()
                finally:
                    self._close()
        finally:
            self._finish()

    def _open(self, open_engine: OpenEngine, loading: Loading) -> bool:
        try:
            self._engine = open_engine(self._settings, loading)
        except (InferdError, LoadAbandoned) as error:
            self.failure = without_frames(error)
            return False
        except Exception as error:  # noqa: BLE001 - the worker's wall
            log_without_frames(f"opening model {self._settings.name!r} failed", error)
            self.failure = model_load_failed(self._settings.name, f"loading model {self._settings.name!r} failed")
            return False
        self.weights_nbytes, self.max_rows = self._engine.weights_nbytes, self._engine.max_rows
        self.footprint = self._engine.footprint
        self.allowance = PrefillAllowance(max(self.footprint.step_tokens, self._settings.prefill_step_size))
        self.failure = None
        self._call(_settle, self.opened)
        return True

    def _serve(self) -> None:
        try:
            while self._take_commands():
                if self._engine.has_work:
                    self._step()
                elif self._uids:
                    logger.error("model %r lost %d sequences without a word", self._settings.name, len(self._uids))
                    self._lose_everything()
        except Exception as error:  # noqa: BLE001 - the worker's wall
            log_without_frames(f"the engine of model {self._settings.name!r} died", error)
            self._post(Died(), is_urgent=True)

    def _take_commands(self) -> bool:
        """Apply what waits, and wait while there is nothing to do; False when it is time to stop."""
        if not self._uids and not self._engine.has_work:
            self.cache_nbytes = self._engine.cache_nbytes
            self.busy_since = None
            command = self._inbox.get()
            self.busy_since = self._clock()
            self._apply(command)
        while not self._is_stopping and not self._inbox.empty():
            self._apply(self._inbox.get())
        return not self._is_stopping

    def _apply(self, command: Command) -> None:
        match command:
            case Insert():
                self._insert(command)
            case Remove(number):
                if number in self._uids:
                    self._engine.remove(self._forget(number))
            case HandBack(by_model):
                for number in list(self._uids):
                    self._engine.remove(self._forget(number))
                self._post(HandedBack(by_model), is_urgent=True)
            case BoundPrefixCache(nbytes):
                self._engine.bound_prefix_cache(nbytes)
            case Wake():
                pass

    def _insert(self, command: Insert) -> None:
        try:
            uid = self._engine.insert(command.request)
        except InferdError as error:
            self._post(Rejected(command.number, without_frames(error)), is_urgent=True)
            return
        except Exception as error:
            self._post(Rejected(command.number, engine_failed(self._settings.name)), is_urgent=True)
            if self._engine.is_broken:
                raise
            log_without_frames(f"model {self._settings.name!r} did not take a sequence", error)
            return
        self._uids[command.number], self._numbers[uid] = uid, command.number
        self._fresh[uid] = command.request
        self.outbox.append(Inserted(command.number, uid))  # no call: it only matters in front of the first token

    def _step(self) -> None:
        fresh = self._fresh.values()
        most_media = max((request.media_nbytes for request in fresh), default=0)
        self.allowance.begin([request.context_tokens for request in fresh], most_media)
        try:
            result = self._engine.step()
        except Exception as error:
            self._failed_steps += 1
            if self._engine.is_broken or self._failed_steps >= MAX_FAILED_STEPS:
                raise
            log_without_frames(f"a step of model {self._settings.name!r} failed", error)
            self._lose_everything()
            return
        self._failed_steps = 0
        self._note_progress(result)
        if result.tokens:
            self._post(result.tokens, is_urgent=self._has_urgent(result.tokens))

    def _note_progress(self, result: StepResultOf[Piece]) -> None:
        now = self._clock()
        if self.busy_since is not None:
            seconds = now - self.busy_since
            self._observer.step(self._settings.name, seconds, len(self._uids))
            self.allowance.end(seconds, result.prefill_tokens, result.media_nbytes)
        self.busy_since = now
        if now >= self._cache_read_at + CACHE_READ_SECONDS:
            self._cache_read_at = now
            self.cache_nbytes = self._engine.cache_nbytes

    def _has_urgent(self, tokens: list[Piece]) -> bool:
        """Whether a first token or an end is among them; sequences that ended are forgotten."""
        fresh, is_urgent = self._fresh, False
        for token in tokens:
            if token.uid in fresh:
                del fresh[token.uid]
                is_urgent = True
            if (token.ended or token.failure) and token.uid in self._numbers:
                self._forget(self._numbers[token.uid])
                is_urgent = True
        return is_urgent

    def _lose_everything(self) -> None:
        for number in list(self._uids):
            self._engine.remove(self._forget(number))
        self._post(Lost(), is_urgent=True)

    def _forget(self, number: int) -> int:
        uid = self._uids.pop(number)
        del self._numbers[uid]
        self._fresh.pop(uid, None)
        return uid

    def _post(self, report: Report, *, is_urgent: bool) -> None:
        self.outbox.append(report)  # before the flags are read: a drain that clears them later sees it
        if not self._is_announced and (is_urgent or not self.is_quiet or len(self.outbox) > MAX_QUIET_REPORTS):
            self._is_announced = True
            self._call(self._report)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._is_stopping = True

    def _close(self) -> None:
        self.busy_since = None
        try:
            self._engine.close()
        except Exception as error:  # noqa: BLE001 - the worker's wall; the thread has to end
            log_without_frames(f"closing model {self._settings.name!r} failed", error)
        finally:
            del self._engine

    def _finish(self) -> None:
        self.cache_nbytes = 0
        self._call(_settle, self.opened, self.ended)


def _settle(*futures: asyncio.Future[None]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


ErrorT = TypeVar("ErrorT", bound=BaseException)


def log_without_frames(message: str, error: Exception) -> None:
    """Log a caught error with its traceback; a log record that someone keeps does not keep the model in memory."""
    logger.error(message, exc_info=error)
    without_frames(error)


def without_frames(error: ErrorT) -> ErrorT:
    """The error without tracebacks, its causes' included, and their frames without variables: those would keep the
    model in memory. (The worker's own frames, which still run, hold it by `self._engine` alone.)"""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
