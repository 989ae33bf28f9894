"""Discrete events on a virtual clock: the machine decides, and everything it asks for comes true after its time.

No effect is left out: checks, loads, abandoned loads, closes, interrupts (each stream ends at its next step, gives its
lease back and asks again), refusals, grants, and the machine's own alarms.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from random import Random

from inferd_server.core.model import ContentionPolicy, ModelEntry
from inferd_server.registry import effects, inputs
from inferd_server.registry.ledger import InstanceKey
from inferd_server.registry.machine import Machine
from inferd_server.registry.policy import RegistryLimits

from .client import Client, End
from .traffic import ABANDON_SECONDS, CHECK_SECONDS, CLOSE_SECONDS, Arrival, decode_seconds, load_seconds


class Simulation:
    """Clients of one machine. `clients` holds what became of each; `ended` hears of each that is answered for good."""

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        limits: RegistryLimits,
        *,
        seed: int,
        deadline_seconds: float,
        ended: Callable[[Client], None] = lambda client: None,
    ) -> None:
        self.machine = Machine(entries, limits)
        self.now = 0.0
        self.clients: list[Client] = []
        self.hits = self.loads = self.swaps = self.abandoned = self.events = 0
        self._ended = ended
        self._deadline_seconds = deadline_seconds
        self._random = Random(seed)  # of load times
        self._sizes = {model.name: model.entry.estimated_bytes for model in self.machine.residency.models.values()}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._waiting: dict[int, Client] = {}
        self._holding: dict[InstanceKey, dict[int, Client]] = defaultdict(dict)
        self._abandoned: set[InstanceKey] = set()

    def expect(self, arrival: Arrival, policy: ContentionPolicy) -> None:
        """A client will arrive."""
        self._at(arrival.at, lambda: self._arrive(arrival, policy))

    def run(self, most_events: float = math.inf) -> None:
        """Until everybody who was expected has been answered and nothing is under way, or for so many events."""
        last_event = self.events + most_events
        while self.events < last_event:
            moment = min(self._next_at(), self.machine.next_wake())
            if moment == math.inf:
                break
            self.now = max(self.now, moment)
            if self._next_at() <= self.now:
                heapq.heappop(self._agenda)[2]()
            else:
                self._tell(inputs.Tick())

    def handle(self, happening: inputs.Input) -> list[effects.Effect]:
        """Hand the machine an input; a stopwatch may override it."""
        return self.machine.handle(happening, self.now)

    # --- the agenda ----------------------------------------------------------------------------------------------

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._agenda, (moment, self._numbers, action))

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._at(self.now + seconds, action)

    def _next_at(self) -> float:
        return self._agenda[0][0] if self._agenda else math.inf

    def _tell(self, happening: inputs.Input) -> None:
        self.events += 1
        for effect in self.handle(happening):
            self._carry_out(effect)
        ledger = self.machine.residency.ledger
        assert ledger.used_nbytes <= ledger.limit_nbytes

    # --- clients -------------------------------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival, policy: ContentionPolicy) -> None:
        client = Client(arrival, policy, self._sizes[arrival.model])
        self.clients.append(client)
        self._after(self._deadline_seconds, lambda: self._leave(client))
        self._ask(client)
        self.hits += client.wait_seconds is not None

    def _ask(self, client: Client) -> None:
        self._numbers += 1
        client.ticket, client.asked_at = self._numbers, self.now
        self._waiting[client.ticket] = client
        self._tell(inputs.Ask(client.ticket, client.request(self._tokens)))

    def _tokens(self, client: Client) -> int:
        return client.tokens_at(self.now)

    def _finish(self, client: Client, stretch: int) -> None:
        if client.end is None and client.stretches == stretch:
            self._give_back(client)
            self._end(client, End.SERVED)

    def _leave(self, client: Client) -> None:
        if client.end is not None:
            return
        if self._waiting.pop(client.ticket, None) is not None:
            self._tell(inputs.Cancel(client.ticket))
        else:
            self._give_back(client)
        self._end(client, End.LEFT)

    def _end(self, client: Client, end: End) -> None:
        client.end = end
        self._ended(client)

    def _give_back(self, client: Client) -> None:
        assert client.grant is not None
        client.stop(self.now)
        del self._holding[(client.grant.name, client.grant.generation)][client.ticket]
        self._tell(inputs.Released(client.ticket))

    def _step_aside(self, client: Client, stretch: int) -> None:
        """An interrupted stream has come to the end of its step."""
        if client.end is None and client.stretches == stretch:
            client.interruptions += 1
            self._give_back(client)
            self._ask(client)

    # --- effects -------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Grant():
                self._grant(effect)
            case effects.Refuse(ticket):
                self._end(self._waiting.pop(ticket), End.REFUSED)
            case effects.StartCheck(name, check):
                self._after(CHECK_SECONDS, lambda: self._tell(inputs.CheckFinished(name, check)))
            case effects.StartLoad(name, generation):
                self.loads += 1
                seconds = load_seconds(self._sizes[name], self._random)
                self._after(seconds, lambda: self._finish_load((name, generation)))
            case effects.AbandonLoad(name, generation):
                self.abandoned += 1
                self._abandoned.add((name, generation))
                self._after(ABANDON_SECONDS, lambda: self._tell(inputs.LoadFailed(name, generation)))
            case effects.StartUnload(name, generation):
                self.swaps += 1
                assert not self._holding.pop((name, generation), None), "closed under a lease"
                freed = self._sizes[name]
                self._after(CLOSE_SECONDS, lambda: self._tell(inputs.UnloadFinished(name, generation, freed)))
            case effects.Interrupt(name, generation):
                self._interrupt((name, generation))
            case effects.ResumeAdmission() | effects.Changed():
                pass  # streams that were interrupted ask again by themselves; nobody watches
            case effects.Abort() | effects.AnswerLoad() | effects.AnswerUnload():
                raise AssertionError(f"nobody ordered {effect}")

    def _grant(self, grant: effects.Grant) -> None:
        client = self._waiting.pop(grant.ticket)
        self._holding[(grant.name, grant.generation)][grant.ticket] = client
        seconds = client.begin(grant, self.now)
        stretch = client.stretches
        self._after(seconds, lambda: self._finish(client, stretch))

    def _finish_load(self, key: InstanceKey) -> None:
        if key not in self._abandoned:
            self._tell(inputs.LoadFinished(*key, self._sizes[key[0]]))

    def _interrupt(self, key: InstanceKey) -> None:
        step_seconds = decode_seconds(self._sizes[key[0]])
        for client in list(self._holding[key].values()):
            stretch = client.stretches
            self._after(step_seconds, lambda client=client, stretch=stretch: self._step_aside(client, stretch))  # type: ignore[misc]
