"""A valid configuration, and where it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from inferd_server.core.access import Key, Limits
from inferd_server.core.model import ContentionPolicy, ModelEntry, Strategy
from inferd_server.core.tls import TlsIdentity

from .document import Document
from .entry import contention_policy, nbytes_of
from .keys import FileStamp
from .schema import (
    AuthSection,
    LimitsSection,
    LoggingSection,
    ManagerSection,
    MetricsSection,
    ModelSection,
    ServerSection,
    TlsSection,
    TracingSection,
)
from .tls import TlsFiles

if TYPE_CHECKING:
    from inferd_server.registry.registry import RegistryLimits


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
        keys_stamp: what `file_stamp` said of it before it was read.
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
    keys_stamp: FileStamp | None
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
