"""Typed configuration from YAML, environment and flags; unknown keys are errors.

Only app and __main__ import this room. A `Config` is whole and valid, or there is none.
"""

from .loading import Config, Sources, entries, load, load_config, reload_config
from .problems import ConfigError, Problem

__all__ = ["Config", "ConfigError", "Problem", "Sources", "entries", "load", "load_config", "reload_config"]
