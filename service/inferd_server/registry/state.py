"""The states of a model and the one table of every change between them (docs/semantics.md §2).

An event that does not fit the state raises: a change that is not in the table is a bug, never a no-op.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from inferd_server.core.model import ModelState


class Event(StrEnum):
    """What can happen to one instance of a model."""

    WANTED = "wanted"  # a ticket asks for it
    DROPPED = "dropped"  # its last ticket left before the load began
    FELL_BACK = "fell back"  # the same, while the engine that failed before has not ended yet
    CHECK_FAILED = "check failed"
    LOAD_STARTED = "load started"
    LOAD_SUCCEEDED = "load succeeded"
    LOAD_FAILED = "load failed"
    ABANDONED = "abandoned"  # the load is given up
    DRAIN_STARTED = "drain started"
    PREEMPTION_STARTED = "preemption started"
    RETURNED = "returned"  # whatever drained or preempted it went away
    UNLOAD_STARTED = "unload started"
    UNLOAD_FINISHED = "unload finished"
    UNLOAD_FAILED = "unload failed"
    DIED = "died"
    FORGOTTEN = "forgotten"  # UnloadModel of a failed model


class ImpossibleChange(AssertionError):
    """An event that the state does not know: a bug of the machine."""


def _table(rows: dict[ModelState, dict[Event, ModelState]]) -> Mapping[ModelState, Mapping[Event, ModelState]]:
    return MappingProxyType({state: MappingProxyType(row) for state, row in rows.items()})


TRANSITIONS = _table(
    {
        ModelState.UNLOADED: {Event.WANTED: ModelState.QUEUED},
        ModelState.QUEUED: {
            Event.LOAD_STARTED: ModelState.LOADING,
            Event.CHECK_FAILED: ModelState.FAILED,
            Event.DROPPED: ModelState.UNLOADED,
            Event.FELL_BACK: ModelState.FAILED,
        },
        ModelState.LOADING: {
            Event.LOAD_SUCCEEDED: ModelState.LOADED,
            Event.LOAD_FAILED: ModelState.FAILED,
            Event.ABANDONED: ModelState.UNLOADING,
        },
        # An idle model that is evicted passes through DRAINING too: it admits nothing from that moment on.
        ModelState.LOADED: {
            Event.DRAIN_STARTED: ModelState.DRAINING,
            Event.PREEMPTION_STARTED: ModelState.PREEMPTING,
            Event.DIED: ModelState.FAILED,
        },
        # DRAINING becomes PREEMPTING when the ticket it drains for reaches its preempt_after, when a preemption needs
        # the room of a model that an UnloadModel drains, or by a forced unload.
        ModelState.DRAINING: {
            Event.RETURNED: ModelState.LOADED,
            Event.PREEMPTION_STARTED: ModelState.PREEMPTING,
            Event.UNLOAD_STARTED: ModelState.UNLOADING,
            Event.DIED: ModelState.FAILED,
        },
        ModelState.PREEMPTING: {
            Event.RETURNED: ModelState.LOADED,
            Event.UNLOAD_STARTED: ModelState.UNLOADING,
            Event.DIED: ModelState.FAILED,
        },
        ModelState.UNLOADING: {
            Event.UNLOAD_FINISHED: ModelState.UNLOADED,
            Event.UNLOAD_FAILED: ModelState.FAILED,
        },
        ModelState.FAILED: {Event.WANTED: ModelState.QUEUED, Event.FORGOTTEN: ModelState.UNLOADED},
    }
)

LEAVING = frozenset({ModelState.DRAINING, ModelState.PREEMPTING, ModelState.UNLOADING})
"""States of an instance that admits nothing and is on its way out."""


def after(state: ModelState, event: Event) -> ModelState:
    """The state that follows.

    Raises:
        ImpossibleChange: the table has no such change.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise ImpossibleChange(f"{event} in state {state}") from None
