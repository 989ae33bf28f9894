"""The composition root: makes the rooms meet, starts them, and stops them in order (docs/semantics.md §9)."""

from .app import App, serve
from .openers import OPENERS, OpenEngine
from .shutdown import JOIN_SECONDS

__all__ = ["JOIN_SECONDS", "OPENERS", "App", "OpenEngine", "serve"]
