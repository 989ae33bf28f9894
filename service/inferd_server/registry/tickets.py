"""Who waits: tickets in one queue, grouped by model, in the order of their ranks.

A group costs the planner the same however many tickets it holds; the operations here are logarithmic, but for the
shifting of small arrays.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from .lease import LeaseRequest
from .policy import Patience, rank

Place = tuple[float, int]
"""Rank, then number of arrival: smallest first."""


class Outlook(StrEnum):
    """What the last look of the planner found for a group."""

    BLOCKED = "blocked"
    CHECKING = "checking"  # there is a way; the model's files are being checked, or its last instance is ending
    COMING = "coming"  # enough is being freed already
    CLAIMED = "claimed"  # instances are leaving for it


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What a LoadModel asks for: an instance of at least this generation, and a pin (None: as it is)."""

    min_generation: int = 0
    pin: bool | None = None
    detached: bool = False  # nobody waits for the answer

    def after(self, earlier: "LoadOrder") -> "LoadOrder":
        """This order with what an earlier one asked for besides."""
        pin = earlier.pin if self.pin is None else self.pin
        return replace(self, min_generation=max(self.min_generation, earlier.min_generation), pin=pin)


@dataclass(slots=True, eq=False)
class Ticket:
    """One who waits: for a lease, or (with `order`) for a load."""

    id: int
    model: str
    arrived_at: float
    priority: int
    patience: Patience
    request: LeaseRequest | None = None
    order: LoadOrder | None = None

    @property
    def place(self) -> Place:
        """Where it stands in the queue."""
        return (rank(self.priority, self.arrived_at), self.id)

    @property
    def is_interrupted(self) -> bool:
        """Whether a request waits to go on where it was interrupted."""
        return self.request is not None and self.request.interrupted

    @property
    def wants_reload(self) -> bool:
        """Whether it asks for a generation that is not there yet."""
        return self.order is not None and self.order.min_generation > 0


class Group:
    """The tickets of one model, never empty."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.outlook = Outlook.BLOCKED
        self.tickets: dict[int, Ticket] = {}  # in order of arrival
        self._places: list[Place] = []
        self._preempting: list[tuple[float, int]] = []  # heap of (preempts_at, id), with tickets that left
        self.impatient: dict[int, Ticket] = {}  # those that may fail when there is no way
        self._reloads = 0
        self._detached = 0  # a ticket's number, whether it is still there or not

    @property
    def head(self) -> Place:
        """The place of the first ticket."""
        return self._places[0]

    @property
    def head_priority(self) -> int:
        """The priority of the first ticket."""
        return self.tickets[self._places[0][1]].priority

    @property
    def oldest_arrival(self) -> float:
        """Since when somebody has waited."""
        return next(iter(self.tickets.values())).arrived_at

    @property
    def wants_reload(self) -> bool:
        """Whether a ticket asks for a generation of its own."""
        return self._reloads > 0

    @property
    def preempts_at(self) -> float:
        """From when on a ticket of the group may preempt; infinite for never."""
        while self._preempting and self._preempting[0][1] not in self.tickets:
            heapq.heappop(self._preempting)
        return self._preempting[0][0] if self._preempting else math.inf

    @property
    def detached(self) -> Ticket | None:
        """The ticket of a load that nobody waits for: never more than one."""
        return self.tickets.get(self._detached)

    def in_order(self) -> list[Ticket]:
        """The tickets by place."""
        return [self.tickets[number] for _, number in self._places]

    def add(self, ticket: Ticket) -> None:
        """Take a ticket in."""
        self.tickets[ticket.id] = ticket
        insort(self._places, ticket.place)
        if ticket.patience.preempts_at < math.inf:
            heapq.heappush(self._preempting, (ticket.patience.preempts_at, ticket.id))
        if ticket.patience.fails_at_once or ticket.patience.fails_when_blocked:
            self.impatient[ticket.id] = ticket
        self._reloads += ticket.wants_reload
        if ticket.order is not None and ticket.order.detached:
            self._detached = ticket.id

    def remove(self, ticket: Ticket) -> None:
        """Let a ticket go."""
        del self.tickets[ticket.id]
        self.impatient.pop(ticket.id, None)
        self._reloads -= ticket.wants_reload
        del self._places[bisect_left(self._places, ticket.place)]


class TicketQueue:
    """Every ticket of the registry."""

    def __init__(self) -> None:
        self.tickets: dict[int, Ticket] = {}
        self.groups: dict[str, Group] = {}
        self._places: list[Place] = []
        self._heads: list[tuple[Place, str]] = []

    def __len__(self) -> int:
        return len(self.tickets)

    def add(self, ticket: Ticket) -> Group:
        """Take a ticket in; its group."""
        self.tickets[ticket.id] = ticket
        insort(self._places, ticket.place)
        group = self.groups.get(ticket.model)
        if group is None:
            group = self.groups[ticket.model] = Group(ticket.model)
        else:
            self._forget_head(group)
        group.add(ticket)
        insort(self._heads, (group.head, group.model))
        return group

    def remove(self, ticket: Ticket) -> None:
        """Let a ticket go; an empty group goes with it."""
        del self.tickets[ticket.id]
        del self._places[bisect_left(self._places, ticket.place)]
        group = self.groups[ticket.model]
        self._forget_head(group)
        group.remove(ticket)
        if group.tickets:
            insort(self._heads, (group.head, group.model))
        else:
            del self.groups[ticket.model]

    def position(self, ticket: Ticket) -> int:
        """How many tickets stand before this one."""
        return bisect_left(self._places, ticket.place)

    def in_order(self) -> Iterator[Group]:
        """The groups by their first tickets, as they stand now."""
        return (self.groups[name] for _, name in tuple(self._heads) if name in self.groups)

    def waiting(self, model: str) -> int:
        """How many tickets a model has."""
        group = self.groups.get(model)
        return 0 if group is None else len(group.tickets)

    def _forget_head(self, group: Group) -> None:
        del self._heads[bisect_left(self._heads, (group.head, group.model))]
