"""BATCHING: who runs next inside one loaded model."""

from .scheduler import Scheduler
from .stream import Stream

__all__ = ["Scheduler", "Stream"]
