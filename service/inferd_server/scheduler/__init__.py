"""BATCHING: who runs next inside one loaded model."""

from .scheduler import Scheduler, SchedulerStatistics
from .stream import Stream

__all__ = ["Scheduler", "SchedulerStatistics", "Stream"]
