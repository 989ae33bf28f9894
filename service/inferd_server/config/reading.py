"""One pass over a document: file, then variables, then flags over it; validated whole, with all problems at once."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from inferd_server.core.access import Key
from inferd_server.core.tls import TlsIdentity
from inferd_server.registry.catalog import ModelFacts, read_facts

from . import rules
from .config import Config, Sources
from .document import Document
from .entry import Folders, absolute_path, entry_of, local_folder, named_path, nbytes_of
from .keys import file_stamp, read_keys
from .listen import endpoint_problem, is_exposed, listen_problem, metrics_listen_problem, probe_listen_problem
from .problems import ConfigError, Location, Problem, dotted, unknown_key
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
from .sections import read_section
from .settings import overlays
from .tls import TlsFiles, read_identity

S = TypeVar("S", bound=Section)


class Reading:
    """One pass over a document; collects problems, so that the pass can go on."""

    def __init__(self, directory: Path, sources: Sources) -> None:
        self.directory = directory
        self.sources = sources
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.said_by: dict[str, str] = {}

    def config(self, document: Document, environ: Mapping[str, str]) -> Config:
        """The configuration that it makes, with the flags and variables over it.

        Raises:
            ConfigError: with every problem found.
        """
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
        keys_stamp = None if keys_path is None else file_stamp(keys_path)
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
            keys_stamp=keys_stamp,
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
        return read_section(kind, raw, prefix, self.problems)

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
