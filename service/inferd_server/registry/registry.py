"""The registry: an asyncio shell around the machine. It carries out effects, keeps the one timer, and answers waiters.

Everything runs on one event loop. Nothing here decides: each happening becomes an input, each effect is carried out.
"""

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from inferd_server.core.errors import InferdError, Reason, engine_failed, model_not_found, server_shutdown
from inferd_server.core.generation import Waiting, WaitState
from inferd_server.core.model import (
    Clock,
    ContentionPolicy,
    Loader,
    ModelEntry,
    Resident,
    Strategy,
    UnloadMode,
)

from . import effects, inputs
from .engines import Engines
from .instances import Model
from .lease import Lease, LeaseRequest
from .machine import Machine
from .observer import Observer
from .policy import RegistryLimits
from .snapshot import (
    LoadOutcome,
    MemorySnapshot,
    ModelSnapshot,
    RegistrySnapshot,
    RegistryStatistics,
    UnloadOutcome,
)
from .waiters import Waiters

__all__ = [
    "Lease",
    "LeaseRequest",
    "LoadOutcome",
    "MemorySnapshot",
    "ModelSnapshot",
    "Registry",
    "RegistryLimits",
    "RegistrySnapshot",
    "RegistryStatistics",
    "UnloadMode",
    "UnloadOutcome",
]

log = logging.getLogger("inferd.registry")


class Registry:
    """Models by name, and leases on them."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        loader: Loader,
        limits: RegistryLimits,
        *,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        active_nbytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._machine = Machine(entries, limits)
        self._limits = limits
        self._clock = clock
        self._names = _names(entries)
        self._engines = Engines(loader, self._tell, self._note_progress, clock, active_nbytes)
        self._observer = Observer(self._machine, self._engines, clock, wall_clock, active_nbytes)
        self._waiters = Waiters(self._waiting, clock)
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[object]] = {}
        self._inbox: deque[inputs.Input] = deque()
        self._is_handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._ended = asyncio.Event()

    # --- names and leases ----------------------------------------------------------------------------------------

    def resolve(self, name: str) -> ModelEntry:
        """The entry of a name or alias; while it is loaded, with what its engine was opened with.

        Raises:
            InferdError: MODEL_NOT_FOUND.
        """
        return self._find(name).served_entry

    def names_of(self, name: str) -> tuple[str, ...]:
        """Every name of the model that a name or alias stands for; the name alone where it stands for none."""
        model = self._machine.residency.models.get(self._names.get(name, name))
        return (name,) if model is None else (model.entry.name, *model.entry.aliases)

    def lease_now(self, request: LeaseRequest) -> Lease | None:
        """A lease, if the model is LOADED; else None, and nothing is asked for."""
        if self._is_handling or not self._machine.admits(request.model):
            return None
        number, answer = self._ask_for_answer()
        self._tell(inputs.Ask(number, request))
        del self._answers[number]
        lease = answer.result()
        assert isinstance(lease, Lease)
        return lease

    async def acquire(self, request: LeaseRequest, on_waiting: Callable[[Waiting], None] | None = None) -> Lease:
        """A lease on a resident instance; waits as the request's policy says.

        Args:
            request: what is asked for.
            on_waiting: told what is waited for, at once and whenever it changes, until the lease is there.

        Raises:
            InferdError: why there is none.
        """
        number, answer = self._ask_for_answer()
        if on_waiting is not None:
            self._waiters.add(number, on_waiting)
        try:
            self._tell(inputs.Ask(number, request))
            lease = await self._answer(number, answer)
        except asyncio.CancelledError:
            # The lease may have been granted while this task was being cancelled: it goes back.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                granted = answer.result()
                assert isinstance(granted, Lease)
                granted.release()
            self._tell(inputs.Cancel(number))
            raise
        finally:
            self._waiters.remove(number)
        assert isinstance(lease, Lease)
        return lease

    # --- loads and unloads ---------------------------------------------------------------------------------------

    async def load(
        self,
        name: str,
        policy: ContentionPolicy | None = None,
        *,
        detach: bool = False,
        validate_only: bool = False,
        pin: bool | None = None,
        reload: bool = False,
    ) -> LoadOutcome:
        """Make a model resident; joins a load under way.

        Args:
            name: name or alias.
            policy: how to make room; None: the server's.
            detach: return at once, and leave the load to the registry.
            validate_only: answer whether it would fit and what would be evicted; change nothing.
            pin: pin or unpin it once it is resident.
            reload: a new generation, even if it is resident.

        Raises:
            InferdError: why it is not resident.
        """
        model = self._find(name)
        wanted_policy = policy or self._limits.policy
        if validate_only:
            return self._validate(model, wanted_policy, reload=reload)
        number, answer = self._ask_for_answer()
        self._tell(inputs.LoadWanted(number, model.name, wanted_policy, pin, reload, detach))
        if detach and not answer.done():
            del self._answers[number]
            return LoadOutcome(self._observer.model(model), self._observer.memory())
        try:
            done = await self._answer(number, answer)
        except asyncio.CancelledError:
            self._tell(inputs.Cancel(number))
            raise
        assert isinstance(done, effects.AnswerLoad)
        return LoadOutcome(self.model(model.name), self._observer.memory(), done.evicted, done.load_seconds)

    def _validate(self, model: Model, policy: ContentionPolicy, *, reload: bool) -> LoadOutcome:
        probe = self._machine.probe(model.name, policy, self._clock(), reload=reload)
        return LoadOutcome(
            self._observer.model(model),
            self._observer.memory(),
            evicted=probe.evicted,
            fits=probe.fits,
            missing_nbytes=probe.missing_nbytes,
            blocking=probe.blocking,
        )

    async def unload(self, name: str, mode: UnloadMode, drain_timeout_seconds: float | None = None) -> UnloadOutcome:
        """Make a model non-resident; returns when its memory is back. The unload goes on if the caller leaves.

        Raises:
            InferdError: MODEL_NOT_FOUND, MODEL_PINNED, MODEL_BUSY, DRAIN_TIMEOUT.
        """
        model = self._find(name)
        number, answer = self._ask_for_answer()
        self._tell(inputs.UnloadWanted(number, model.name, mode, drain_timeout_seconds))
        done = await self._answer(number, answer)
        assert isinstance(done, effects.AnswerUnload)
        return UnloadOutcome(self._observer.model(model), done.freed_nbytes)

    async def preload(self, names: Collection[str] | None = None) -> None:
        """Load the preload entries (of these names) one after the other, pinned ones first; each ends LOADED or
        FAILED."""
        policy = ContentionPolicy(Strategy.WAIT_THEN_FAIL, self._limits.load_timeout_seconds)
        preloads = [model.entry for model in self._machine.residency.models.values() if model.entry.preload]
        preloads = [entry for entry in preloads if names is None or entry.name in names]
        for entry in sorted(preloads, key=lambda entry: not entry.pinned):
            try:
                await self.load(entry.name, policy)
            except InferdError as error:
                if error.reason is Reason.SERVER_DRAINING:
                    return
                log.error("preload failed: %s", error.message, extra={"model": entry.name, "reason": str(error.reason)})

    async def replace_entries(self, entries: Sequence[ModelEntry]) -> None:
        """Apply a new, valid configuration: removed models drain, aliases move, changes count from the next load."""
        self._names = _names(entries)
        self._tell(inputs.EntriesReplaced(tuple(entries)))

    def end_waiting(self, error: InferdError) -> None:
        """End every ticket with `error`; later requests for models that are not resident end with it too."""
        self._tell(inputs.WaitingEnded(error))

    async def close(self) -> None:
        """End everything: requests with SERVER_SHUTDOWN, loads, engines; returns once all memory is back.

        An engine whose close failed is not waited for. The caller bounds the wait; the ends go on if it leaves.
        """
        self._tell(inputs.Closed(server_shutdown()))
        while not self._machine.has_ended():
            self._ended.clear()
            await self._ended.wait()
        await self._engines.join()
        self._set_timer(math.inf)
        self._waiters.close()

    # --- observing -----------------------------------------------------------------------------------------------

    def snapshot(self) -> RegistrySnapshot:
        """Every model by name, and the budget, at one moment."""
        return self._observer.everything()

    def model(self, name: str) -> ModelSnapshot:
        """One model, by name or alias.

        Raises:
            InferdError: MODEL_NOT_FOUND.
        """
        return self._observer.model(self._find(name))

    def subscribe(self, callback: Callable[[ModelSnapshot], None]) -> Callable[[], None]:
        """Be told each change of state and progress of loads, on the loop; returns what ends it."""
        return self._observer.subscribe(callback)

    def statistics(self) -> RegistryStatistics:
        """Frozen figures for metrics."""
        return self._observer.statistics()

    def _find(self, name: str) -> Model:
        model = self._machine.residency.models.get(self._names.get(name, ""))
        if model is None:
            raise model_not_found(name, set(self._names.values()))
        return model

    # --- inputs --------------------------------------------------------------------------------------------------

    def _tell(self, happening: inputs.Input) -> None:
        """Hand the machine an input and carry out its effects; one told meanwhile follows after."""
        self._inbox.append(happening)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._inbox:
                for effect in self._machine.handle(self._inbox.popleft(), self._clock()):
                    self._carry_out(effect)
        finally:
            self._is_handling = False
        self._set_timer(self._machine.next_wake())
        self._waiters.look()
        if self._machine.has_ended():
            self._ended.set()

    def _set_timer(self, at: float) -> None:
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None
        if at < math.inf:
            delay = max(0.0, at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._tell(inputs.Tick())

    def _ask_for_answer(self) -> "tuple[int, asyncio.Future[object]]":
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        return number, answer

    async def _answer(self, number: int, answer: "asyncio.Future[object]") -> object:
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    # --- effects -------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Grant():
                self._grant(effect)
            case effects.Refuse():
                self._reply(effect.ticket, effect.error)
            case effects.AnswerLoad():
                self._reply(effect.ticket, effect)
            case effects.AnswerUnload():
                self._reply(effect.order, effect)
            case effects.StartCheck(name, check):
                entry = self._machine.residency.models[name].entry
                self._engines.check(entry, check, self._limits.load_timeout_seconds)
            case effects.StartLoad(name, generation):
                self._engines.load(self._machine.residency.models[name].entry, generation)
            case effects.AbandonLoad(name, generation):
                self._engines.abandon((name, generation))
            case effects.StartUnload(name, generation):
                self._engines.close((name, generation))
            case effects.Interrupt(name, generation, by_model):
                self._act(name, generation, lambda resident: resident.interrupt(by_model))
            case effects.ResumeAdmission(name, generation):
                self._act(name, generation, lambda resident: resident.resume())
            case effects.Abort(name, generation, error):
                self._act(name, generation, lambda resident: resident.abort(error))
            case effects.Changed():
                self._observer.report(effect)

    def _act(self, name: str, generation: int, action: Callable[[Resident], None]) -> None:
        try:
            action(self._engines[name, generation])
        except Exception:  # the effect runner's wall: an engine that can't be spoken to is dead
            log.exception("an engine failed", extra={"model": name, "generation": generation})
            self._inbox.append(inputs.Died(name, generation, engine_failed(name)))

    def _grant(self, grant: effects.Grant) -> None:
        lease = Lease(
            grant.entry,
            grant.generation,
            self._engines[grant.name, grant.generation],
            grant.record,
            lambda number: self._tell(inputs.Released(number)),
            waited_seconds=grant.waited_seconds,
            loading_seconds=grant.loading_seconds,
        )
        if not self._reply(grant.ticket, lease):
            lease.release()

    def _reply(self, number: int, outcome: object) -> bool:
        """Answer a waiter; whether it was still there."""
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return False
        if isinstance(outcome, InferdError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
        return True

    def _note_progress(self, name: str) -> None:
        self._observer.report_progress(name)
        self._waiters.look()

    def _waiting(self, number: int) -> Waiting | None:
        facts = self._machine.waiting(number)
        if facts is None:
            return None
        state, position = facts
        model = self._machine.residency.models[self._machine.queue.tickets[number].model]
        loading = (model.successor or model.current).key
        progress = self._engines.progress(loading) if state in (WaitState.LOADING, WaitState.PREEMPTED) else 0.0
        return Waiting(state, position, progress)


def _names(entries: Sequence[ModelEntry]) -> dict[str, str]:
    """Canonical names by name and alias."""
    return {alias: entry.name for entry in entries for alias in (*entry.aliases, entry.name)}
