"""Typed configuration from YAML, environment and flags; unknown keys are errors.

Only app and __main__ import this room. A `Config` is whole and valid, or there is none.
"""

from .budget import BudgetReport, MemoryFigures, budget_report, memory_figures, work_limit_nbytes
from .config import Config, Sources, entries, registry_limits
from .keys import file_stamp, read_keys
from .loading import load, load_config, look_again, reload_config
from .problems import ConfigError, Problem
from .tls import IdentityWatch

__all__ = [
    "BudgetReport",
    "Config",
    "ConfigError",
    "IdentityWatch",
    "MemoryFigures",
    "Problem",
    "Sources",
    "budget_report",
    "entries",
    "file_stamp",
    "load",
    "load_config",
    "look_again",
    "memory_figures",
    "read_keys",
    "registry_limits",
    "reload_config",
    "work_limit_nbytes",
]
