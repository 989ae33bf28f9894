"""Reading a configuration: at the start, and again while it serves."""

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from inferd_server.core.model import CheckedFiles, ModelEntry
from inferd_server.registry.catalog import read_facts

from .config import Config, Sources
from .document import Document, read_document
from .entry import Folders, entry_of
from .problems import ConfigError, Problem
from .reading import Reading


def load_config(
    path: Path | None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    document: Document | None = None,
    insecure: bool = False,
) -> Config:
    """Read and validate a configuration. Blocking: reads the file and the models' headers.

    Args:
        path: the YAML file; None to take `document`.
        overrides: flags, as text by setting path (settings.SETTINGS).
        environ: the environment; None: the process's own.

    Raises:
        ConfigError: with every problem found.
    """
    return load(Sources(path, document or {}, dict(overrides or {}), insecure), environ)


def reload_config(config: Config, environ: Mapping[str, str] | None = None) -> Config:
    """The same configuration read again from where it came from; only models, keys and limits may have changed.

    Raises:
        ConfigError: what is wrong with it, or which other sections changed; `config` is left as it is.
    """
    fresh = load(config.sources, environ)
    problems = [
        Problem(f"{section}.{key}", "is fixed while the server runs; restart it to change this")
        for section in ("server", "manager", "logging", "metrics", "tracing", "tls", "auth")
        for key, value in getattr(fresh, section)
        if value != getattr(getattr(config, section), key)
    ]
    if problems:
        raise ConfigError(problems)
    return fresh


def look_again(config: Config, entry: ModelEntry) -> CheckedFiles:
    """What the files of one of its models say now. Blocking; never raises for what they hold."""
    facts = read_facts(*entry.engine.folders)
    model = next((model for model in config.models if model.name == entry.name), None)
    if model is None:  # a new configuration has just removed it
        return CheckedFiles(entry, facts.weights_nbytes)
    fresh = entry_of(model, config.server, config.manager, Folders(*entry.engine.folders), facts)
    return CheckedFiles(fresh, facts.weights_nbytes)


def load(sources: Sources, environ: Mapping[str, str] | None = None) -> Config:
    """`load_config` for sources."""
    document = read_document(sources.path) if sources.path else deepcopy(sources.document)
    directory = sources.path.parent if sources.path else Path()
    reading = Reading(directory, sources)
    return reading.config(document, os.environ if environ is None else environ)
