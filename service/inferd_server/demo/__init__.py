"""The demo: a chat model, an embedder and a tiny model that sees, prepared once and served under one small budget."""

from .bars import progress_bars
from .models import BUDGET_NOTE, MODELS, demo_document
from .parts import DemoError, Fetch, Part, Progress
from .preparing import Terminated, default_directory, is_complete, prepare

__all__ = [
    "BUDGET_NOTE",
    "MODELS",
    "DemoError",
    "Fetch",
    "Part",
    "Progress",
    "Terminated",
    "default_directory",
    "demo_document",
    "is_complete",
    "prepare",
    "progress_bars",
]
