"""What is, at one moment: taken on the event loop, turned into metrics anywhere."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from inferd_server.core.model import ModelState
from inferd_server.registry.registry import ModelSnapshot, RegistrySnapshot, RegistryStatistics

from . import catalog
from .catalog import Kind, Metric


@dataclass(frozen=True, slots=True)
class Build:
    """What runs where."""

    version: str
    mlx_version: str
    device: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The frozen figures of one moment."""

    build: Build
    is_ready: bool
    registry: RegistrySnapshot
    statistics: RegistryStatistics
    process_nbytes: int = 0
    certificate_end: float = 0.0
    lost_log_lines: int = 0


def families(picture: Picture) -> Iterator[Family]:
    """The metrics of catalog.READ."""
    build, memory, counters = picture.build, picture.registry.memory, picture.statistics.counters
    yield _family(catalog.BUILD, [((build.version, build.mlx_version, build.device), 1)])
    yield from _models(picture.registry.models)
    for metric, value in (
        (catalog.READY, picture.is_ready),
        (catalog.BUDGET, memory.limit_nbytes),
        (catalog.USED, memory.used_nbytes),
        (catalog.RESERVED, memory.reserved_nbytes),
        (catalog.CEILING, memory.ceiling_nbytes),
        (catalog.ACTIVE, memory.active_nbytes),
        (catalog.PROCESS, picture.process_nbytes),
        (catalog.CERTIFICATE_END, picture.certificate_end),
        (catalog.LEASES, picture.statistics.leases),
        (catalog.LOAD_FAILURES, counters.load_failures),
        (catalog.ABANDONED_LOADS, counters.abandoned_loads),
        (catalog.DEATHS, counters.deaths),
        (catalog.EVICTIONS, counters.evictions),
        (catalog.PREEMPTIONS, counters.preemptions),
        (catalog.DRAINS, counters.drains),
        (catalog.IDLE_UNLOADS, counters.idle_unloads),
        (catalog.REFUSALS, counters.refusals),
        (catalog.LOST_LOG_LINES, picture.lost_log_lines),
    ):
        yield _family(metric, [((), value)])


def _models(models: Iterable[ModelSnapshot]) -> Iterator[Family]:
    models = list(models)
    yield _family(catalog.RUNNING, [((model.entry.name,), model.running) for model in models])
    yield _family(catalog.WAITING, [((model.entry.name,), model.waiting) for model in models])
    yield _family(catalog.CHARGED, [((model.entry.name,), model.charged_nbytes) for model in models])
    yield _family(catalog.CACHE, [((model.entry.name,), model.cache_nbytes) for model in models])
    yield _family(catalog.STEP_AGE, [((model.entry.name,), model.step_age_seconds) for model in models])
    states = [((model.entry.name, state.value), model.state is state) for model in models for state in ModelState]
    yield _family(catalog.STATE, states)


def _family(metric: Metric, values: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
