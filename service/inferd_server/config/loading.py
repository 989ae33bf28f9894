"""Reading a configuration: file, then variables, then flags over it; validated whole, with all problems at once."""

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from inferd_server.core.access import Key, Limits
from inferd_server.core.model import CheckedFiles, ContentionPolicy, ModelEntry, Strategy
from inferd_server.core.tls import TlsIdentity
from inferd_server.registry.catalog import ModelFacts, read_facts

from . import rules
from .document import Document, read_document
from .entry import Folders, absolute_path, contention_policy, entry_of, local_folder, named_path, nbytes_of
from .keys import read_keys
from .listen import endpoint_problem, is_exposed, listen_problem, metrics_listen_problem, probe_listen_problem
from .problems import ConfigError, Location, Problem, dotted, problems_of, unknown_key
from .schema import (
    MAX_MODELS,
    SECTIONS,
    AuthSection,
    LimitsSection,
    LoggingSection,
    ManagerSection,
    MetricsSection,
    ModelSection,
    Section,
    ServerSection,
    TlsSection,
    TracingSection,
)
from .settings import overlays
from .tls import TlsFiles, read_identity

if TYPE_CHECKING:
    from inferd_server.registry.registry import RegistryLimits

S = TypeVar("S", bound=Section)
# What a required key is taken for after its own problem was noted, so that the rules can go on to find the others.
_STAND_INS: dict[type[Section], Document] = {
    ManagerSection: {"memory_budget_gb": 1_048_576},
    ModelSection: {"name": "unnamed"},
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a configuration comes from, to read it again.

    Attributes:
        path: the file; None where `document` stands for it.
        document: a document made in memory (one model, the demo).
        flags: text by setting path ("server.listen"), those given on the command line.
        insecure: whether other machines may reach the address.
    """

    path: Path | None = None
    document: Document = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """A valid configuration: its sections as written, and the models' entries with what their files say.

    Attributes:
        keys: of the keys file; None where there is none.
        keys_path: that file.
        entries: one for each of `models`, in the same order.
        damage: by model name, what will make its load fail; models without damage are not listed.
        tls_files: where the server's certificate lies; None without TLS.
        identity: what lay there.
        warnings: what is valid and yet may be meant otherwise.
    """

    server: ServerSection
    manager: ManagerSection
    logging: LoggingSection
    metrics: MetricsSection
    tracing: TracingSection
    tls: TlsSection
    auth: AuthSection
    limits: LimitsSection
    keys: tuple[Key, ...] | None = field(repr=False)
    keys_path: Path | None
    models: tuple[ModelSection, ...]
    entries: tuple[ModelEntry, ...]
    damage: Mapping[str, tuple[str, ...]]
    sources: Sources
    tls_files: TlsFiles | None = None
    identity: TlsIdentity | None = None
    warnings: tuple[str, ...] = ()

    @property
    def budget_nbytes(self) -> int:
        """Bytes of weights, all resident models together."""
        return nbytes_of(self.manager.memory_budget_gb)

    @property
    def policy(self) -> ContentionPolicy:
        """The default contention policy."""
        return contention_policy(self.manager)

    @property
    def request_overrides(self) -> frozenset[Strategy]:
        """Strategies that a request may ask for."""
        return frozenset(self.manager.request_overrides)

    @property
    def caller_limits(self) -> Limits:
        """What all callers together may use."""
        return Limits(**dict(self.limits))

    @property
    def resume_preempted(self) -> bool:
        """Whether interrupted requests go on when their model is back."""
        return self.manager.preempted_requests == "resume"


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


def entries(config: Config) -> list[ModelEntry]:
    """The configured models as the registry and the engine know them, in the file's order."""
    return list(config.entries)


def registry_limits(config: Config, ceiling_nbytes: int = 0) -> "RegistryLimits":
    """The manager section as the registry knows it; `ceiling_nbytes` is MemoryFigures.ceiling_nbytes."""
    # Imported here so that `check` does not pay for the registry's shell.
    from inferd_server.registry.registry import RegistryLimits  # noqa: PLC0415

    manager = config.manager
    return RegistryLimits(
        budget_nbytes=config.budget_nbytes,
        policy=config.policy,
        resume_preempted=config.resume_preempted,
        min_residency_seconds=manager.min_residency_s,
        drain_busy_after_seconds=manager.drain_busy_after_s,
        load_timeout_seconds=manager.load_timeout_s,
        ceiling_nbytes=ceiling_nbytes,
    )


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
    reading = _Reading(directory, sources)
    return reading.config(document, os.environ if environ is None else environ)


class _Reading:
    """One pass over a document; collects problems, so that the pass can go on."""

    def __init__(self, directory: Path, sources: Sources) -> None:
        self.directory = directory
        self.sources = sources
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.said_by: dict[str, str] = {}

    def config(self, document: Document, environ: Mapping[str, str]) -> Config:
        self._check_sections(document)
        self._overlay(document, environ)
        server = self._section(ServerSection, document.get("server"), ("server",))
        manager = self._section(ManagerSection, document.get("manager"), ("manager",))
        logging = self._section(LoggingSection, document.get("logging"), ("logging",))
        metrics = self._section(MetricsSection, document.get("metrics"), ("metrics",))
        tracing = self._section(TracingSection, document.get("tracing"), ("tracing",))
        tls = self._section(TlsSection, document.get("tls"), ("tls",))
        auth = self._section(AuthSection, document.get("auth"), ("auth",))
        limits = self._section(LimitsSection, document.get("limits"), ("limits",))
        models = self._models(document.get("models"))
        tls_files = self._tls_files(tls)
        identity = None if tls_files is None else self._identity(tls_files)
        keys_path = self._keys_path(auth)
        keys = None if keys_path is None else self._keys(keys_path, manager)
        self._check_listen(server, metrics, guarded=tls.certificate is not None or keys is not None)
        self._warn_of_exposure(server.listen, tls, has_keys=keys is not None)
        self._check_endpoint(tracing)
        self.problems += rules.policy_problems(manager)
        self.problems += rules.system_problems(server)
        described = [
            (i, entry_of(model, server, manager, folders, facts), facts)
            for i, model, folders, facts in self._sized(models)
        ]
        for i, entry, facts in described:
            self.problems += rules.size_problems(i, entry, facts, nbytes_of(manager.memory_budget_gb))
        entries = tuple(entry for _, entry, _ in described)
        self.problems += rules.resident_set_problems(entries, nbytes_of(manager.memory_budget_gb))
        if self.problems:
            raise ConfigError([self._attributed(problem) for problem in self.problems])
        damage = {entry.name: facts.damage for _, entry, facts in described if facts.damage}
        sections = tuple(model for _, model in models)
        return Config(
            server=server,
            manager=manager,
            logging=logging,
            metrics=metrics,
            tracing=tracing,
            tls=tls,
            auth=auth,
            limits=limits,
            keys=keys,
            keys_path=keys_path,
            models=sections,
            entries=entries,
            damage=damage,
            sources=self.sources,
            tls_files=tls_files,
            identity=identity,
            warnings=tuple(self.warnings),
        )

    def _keys_path(self, auth: AuthSection) -> Path | None:
        if auth.keys_file is None:
            return None
        # As with the files of TLS: from the working directory if a flag or a variable names it.
        return absolute_path(auth.keys_file, Path() if "auth.keys_file" in self.said_by else self.directory)

    def _keys(self, path: Path, manager: ManagerSection) -> tuple[Key, ...]:
        """The file's keys; none where it has problems."""
        try:
            return read_keys(path, frozenset(manager.request_overrides))
        except ConfigError as error:
            self.problems += [
                replace(problem, path=f"auth.keys_file: {problem.path}".removesuffix(": "))
                for problem in error.problems
            ]
            return ()

    def _check_sections(self, document: Document) -> None:
        for key in document:
            if key not in SECTIONS:
                self.problems.append(Problem(dotted([key]), unknown_key(key, SECTIONS)))

    def _overlay(self, document: Document, environ: Mapping[str, str]) -> None:
        for setting, value, source in overlays(self.sources.flags, environ):
            place: Any = document
            for key in setting.location[:-1]:
                if place.get(key) is None:
                    place[key] = {}
                place = place[key]
                if not isinstance(place, dict):  # refused with its own problem
                    break
            else:
                place[setting.location[-1]] = value
                self.said_by[setting.path] = source

    def _attributed(self, problem: Problem) -> Problem:
        source = self.said_by.get(problem.path)
        return replace(problem, message=f"{problem.message} (from {source})") if source else problem

    def _section(self, kind: type[S], raw: object, prefix: Location) -> S:
        """A section; what is bad in it is noted and stands at its default."""
        raw = {} if raw is None else raw
        if not isinstance(raw, dict):
            self.problems += [p for _, p in problems_of(_rejection(kind, raw), kind, prefix)]
            raw = dict(_STAND_INS.get(kind, {}))
        try:
            section = kind.model_validate(raw)
        except ValidationError as error:
            found = problems_of(error, kind, prefix)
            self.problems += [problem for _, problem in found]
            section = kind.model_validate(_without(raw, [location for location, _ in found], kind))
        self.problems += rules.later_problems(section, prefix)
        return section

    def _models(self, raw: object) -> list[tuple[Document | None, ModelSection]]:
        if not isinstance(raw, list) or not raw or len(raw) > MAX_MODELS:
            message = "is required: a list" if raw is None else "must be a list"
            self.problems.append(Problem("models", f"{message} of 1 to {MAX_MODELS} models"))
            return []
        self.problems += rules.name_problems(raw)
        models: list[tuple[Document | None, ModelSection]] = []
        for i, item in enumerate(raw):
            section = self._section(ModelSection, item, ("models", i))
            models.append((item if isinstance(item, dict) else None, section))
        return models

    def _check_listen(self, server: ServerSection, metrics: MetricsSection, *, guarded: bool) -> None:
        insecure = self.sources.insecure
        messages = {"server.listen": listen_problem(server.listen, insecure=insecure, guarded=guarded)}
        if server.probe_listen is not None:
            messages["server.probe_listen"] = probe_listen_problem(server.probe_listen)
        if metrics.listen is not None:
            messages["metrics.listen"] = metrics_listen_problem(metrics.listen, insecure=insecure)
        self.problems += [Problem(path, message) for path, message in messages.items() if message]

    def _warn_of_exposure(self, listen: str, tls: TlsSection, *, has_keys: bool) -> None:
        if not is_exposed(listen):
            return
        if has_keys and tls.certificate is None:
            self.warnings.append(f"keys and prompts travel in clear: {listen} can be reached without TLS")
        elif not has_keys and tls.client_ca is None and not self.sources.insecure:
            self.warnings.append(
                f"whoever can reach {listen} may use and unload the models: TLS alone asks nobody who they are. Set "
                "auth.keys_file or tls.client_ca"
            )

    def _tls_files(self, tls: TlsSection) -> TlsFiles | None:
        """The files of the section, from the file's folder (from the working directory if a flag or a variable names
        them); None without TLS, or where one of a pair is missing."""
        stated = {key: value for key, value in tls if value is not None}
        if not stated:
            return None
        missing = [key for key in ("certificate", "key") if key not in stated]
        self.problems += [Problem(f"tls.{key}", f"is required beside tls.{min(stated)}") for key in missing]
        if missing:
            return None
        paths = {
            key: absolute_path(value, Path() if f"tls.{key}" in self.said_by else self.directory)
            for key, value in stated.items()
        }
        return TlsFiles(**paths)

    def _identity(self, files: TlsFiles) -> TlsIdentity | None:
        """What the files hold; None where that is a problem."""
        try:
            identity, warnings = read_identity(files)
        except ConfigError as error:
            self.problems += error.problems
            return None
        self.warnings += warnings
        return identity

    def _check_endpoint(self, tracing: TracingSection) -> None:
        message = "" if tracing.endpoint is None else endpoint_problem(tracing.endpoint, insecure=tracing.insecure)
        if message:
            self.problems.append(Problem("tracing.endpoint", message))

    def _sized(
        self, models: list[tuple[Document | None, ModelSection]]
    ) -> Iterator[tuple[int, ModelSection, Folders, ModelFacts]]:
        """The models whose folders are there, with what lies in them; the others' problems are noted."""
        for i, (raw, model) in enumerate(models):
            if raw is None:
                continue
            found = list(rules.source_problems(raw, model, i, self.directory))
            found += rules.companion_problems(model, i, self.directory)
            self.problems += found
            folder = local_folder(model, self.directory)
            if not found and folder is not None:
                companions = [named_path(each, self.directory) for each in (model.adapter_path, model.draft_model)]
                folders = Folders(folder, *companions)
                yield i, model, folders, read_facts(*folders)


def _rejection(kind: type[Section], raw: object) -> ValidationError:
    try:
        kind.model_validate(raw)
    except ValidationError as error:
        return error
    raise AssertionError(f"{kind.__name__} accepts {type(raw).__name__}")


def _without(raw: Document, locations: list[Location], kind: type[Section]) -> Document:
    """A copy without the bad keys (a list with a bad element goes whole), and with stand-ins for required ones."""
    rest = deepcopy(raw)
    for location in locations:
        keys = location[: next((i for i, part in enumerate(location) if isinstance(part, int)), len(location))]
        place: Any = rest
        for key in keys[:-1]:
            place = place.get(key, {})
        place.pop(keys[-1], None)
    return {**_STAND_INS.get(kind, {}), **rest}
