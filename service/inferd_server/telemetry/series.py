"""The series of what happened, in a registry of their own; those of a model are found once and kept at hand."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from . import catalog
from .catalog import Kind, Metric


@dataclass(frozen=True, slots=True)
class ModelSeries:
    """One model's series: looking one up by its label takes as long as adding to it."""

    first_token: Histogram
    per_token: Histogram
    inter_token: Histogram
    queue: Histogram
    load_wait: Histogram
    prompt_tokens: Counter
    cached_prompt_tokens: Counter
    completion_tokens: Counter
    preemptions: Counter
    resumes: Counter
    load: Histogram
    step: Histogram
    batch: Histogram


class Series:
    """Counters and histograms of catalog.TOLD. Adding to them is safe from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            metric: Counter(metric.name, metric.meaning, metric.labels, registry=registry)
            for metric in catalog.TOLD
            if metric.kind is Kind.COUNTER
        }
        self._histograms = {
            metric: Histogram(metric.name, metric.meaning, metric.labels, buckets=metric.buckets, registry=registry)
            for metric in catalog.TOLD
            if metric.kind is Kind.HISTOGRAM
        }
        self._models: dict[str, ModelSeries] = {}

    def counter(self, metric: Metric) -> Counter:
        """One of them."""
        return self._counters[metric]

    def histogram(self, metric: Metric) -> Histogram:
        """One of them."""
        return self._histograms[metric]

    def model(self, name: str) -> ModelSeries:
        """The series of a configured model; they begin at 0."""
        series = self._models.get(name)
        if series is None:
            series = self._models[name] = self._make(name)
        return series

    def forget(self, name: str) -> None:
        """Drop a model's series; who still holds them adds to what nobody sees."""
        self._models.pop(name, None)
        for metric, series in (*self._counters.items(), *self._histograms.items()):
            if "model" in metric.labels:
                series.remove_by_labels({"model": name})

    def _make(self, name: str) -> ModelSeries:
        counters, histograms = self._counters, self._histograms
        return ModelSeries(
            first_token=histograms[catalog.TIME_TO_FIRST_TOKEN].labels(name),
            per_token=histograms[catalog.TIME_PER_OUTPUT_TOKEN].labels(name),
            inter_token=histograms[catalog.INTER_TOKEN].labels(name),
            queue=histograms[catalog.QUEUE].labels(name),
            load_wait=histograms[catalog.LOAD_WAIT].labels(name),
            prompt_tokens=counters[catalog.PROMPT_TOKENS].labels(name),
            cached_prompt_tokens=counters[catalog.CACHED_PROMPT_TOKENS].labels(name),
            completion_tokens=counters[catalog.COMPLETION_TOKENS].labels(name),
            preemptions=counters[catalog.REQUEST_PREEMPTIONS].labels(name),
            resumes=counters[catalog.REQUEST_RESUMES].labels(name),
            load=histograms[catalog.MODEL_LOAD].labels(name),
            step=histograms[catalog.STEP].labels(name),
            batch=histograms[catalog.BATCH].labels(name),
        )
