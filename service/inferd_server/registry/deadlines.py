"""Moments that end something by themselves: a ticket's patience, a load's limit, a drain's limit, an idle time."""

from collections.abc import Hashable
from dataclasses import dataclass

from inferd_server.core.model import ModelState

from .alarms import Alarms
from .instances import Instance
from .residency import Residency
from .tickets import Ticket, TicketQueue
from .unloading import Unloading


@dataclass(frozen=True, slots=True)
class TicketDeadline:
    """A ticket's patience ends."""

    ticket: int


@dataclass(frozen=True, slots=True)
class LoadDeadline:
    """A load takes too long."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class IdleDeadline:
    """An instance may have been idle for its idle_unload time."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class DrainDeadline:
    """The drain of an UnloadModel takes too long."""

    name: str
    order: int


Deadline = TicketDeadline | LoadDeadline | IdleDeadline | DrainDeadline


class Deadlines:
    """Keeps the moments; what to do when one comes is the machine's."""

    def __init__(self, residency: Residency, queue: TicketQueue, unloading: Unloading) -> None:
        self._residency = residency
        self._queue = queue
        self._unloading = unloading
        self._alarms = Alarms(self._is_live)

    def next_at(self) -> float:
        """When the next one comes; infinite for never."""
        return self._alarms.next_at()

    def due(self, now: float) -> Deadline | None:
        """Take the next one that has come."""
        subject = self._alarms.due(now)
        assert subject is None or isinstance(subject, Deadline)
        return subject

    def watch_ticket(self, ticket: Ticket) -> None:
        """Watch a ticket's patience: it counts while the ticket waits for room, not while its model is loaded."""
        self._alarms.set(ticket.patience.expires_at, TicketDeadline(ticket.id))

    def watch_load(self, name: str, generation: int, now: float) -> None:
        """Watch a load that starts now."""
        self._alarms.set(now + self._residency.limits.load_timeout_seconds, LoadDeadline(name, generation))

    def watch_drain(self, name: str, order: int, at: float) -> None:
        """Watch an unload order."""
        self._alarms.set(at, DrainDeadline(name, order))

    def watch_idleness(self, instance: Instance) -> None:
        """Watch an instance that has become idle; one alarm for each, however often it is used in between."""
        if self._may_idle_out(instance) and not instance.idleness_watched:
            instance.idleness_watched = True
            self._alarms.set(self.idle_at(instance), IdleDeadline(instance.name, instance.generation))

    def is_idle_for_long(self, deadline: IdleDeadline, now: float) -> Instance | None:
        """The instance of the deadline, if it is to be unloaded; one that was used in between is watched again."""
        instance = self._residency.find(deadline.name, deadline.generation)
        assert instance is not None
        instance.idleness_watched = False
        if self._may_idle_out(instance) and self.idle_at(instance) <= now:
            return instance
        self.watch_idleness(instance)
        return None

    def idle_at(self, instance: Instance) -> float:
        """When an instance has been idle for as long as its entry allows."""
        seconds = self._residency.models[instance.name].entry.idle_unload_seconds
        youth_ends_at = instance.loaded_at + self._residency.limits.min_residency_seconds
        return max(instance.last_used_at + seconds, youth_ends_at)

    def _may_idle_out(self, instance: Instance) -> bool:
        model = self._residency.models[instance.name]
        if model.entry.idle_unload_seconds <= 0 or model.pinned or model.successor is not None:
            return False
        return instance.state is ModelState.LOADED and not instance.leases

    def _is_live(self, subject: Hashable) -> bool:
        match subject:
            case TicketDeadline(number):
                ticket = self._queue.tickets.get(number)
                return ticket is not None and not self._residency.models[ticket.model].is_loading
            case LoadDeadline(name, generation):
                instance = self._residency.find(name, generation)
                return instance is not None and instance.state is ModelState.LOADING
            case IdleDeadline(name, generation):
                instance = self._residency.find(name, generation)
                return instance is not None and instance.state is ModelState.LOADED
            case DrainDeadline(name, order):
                return self._unloading.find(name, order) is not None
        raise AssertionError(subject)
