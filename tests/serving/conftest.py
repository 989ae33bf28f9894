"""Fixtures of the serving room."""

from support.no_blocking import no_blocking

__all__ = ["no_blocking"]
