"""Metrics for Prometheus: an Observer of what happens, and a picture of what is, taken when Prometheus asks."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family

from inferd_server.core.errors import InferdError
from inferd_server.core.generation import Timing, Usage
from inferd_server.core.model import ModelState
from inferd_server.registry.registry import ModelSnapshot, Registry

from . import catalog
from .logs import lost_lines
from .picture import Build, Picture, families
from .series import ModelSeries, Series

LAG_INTERVAL_SECONDS = 0.5
TIMED_METHODS = frozenset(
    f"/inferd.v1.InferenceService/{name}" for name in ("Generate", "StreamGenerate", "Embed", "Rerank")
)
"""Calls whose duration says something; a watch's says when its client left."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # a line with the time of birth beside every counter and histogram: a fifth of the answer


class Metrics:
    """An Observer of one server. Its series are its own; labels take configured models' names alone."""

    def __init__(
        self,
        registry: Registry,
        build: Build,
        is_ready: Callable[[], bool],
        process_nbytes: Callable[[], int] = lambda: 0,
        certificate_end: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._process_nbytes = process_nbytes
        self._certificate_end = certificate_end
        self._registry = registry
        self._build = build
        self._is_ready = is_ready
        self._generations: dict[str, int] = {}  # the load seen last, by model
        self._events = CollectorRegistry()
        ProcessCollector(registry=self._events)
        self._series = Series(self._events)
        self._requests = self._series.counter(catalog.REQUESTS)
        self._duration = self._series.histogram(catalog.REQUEST_DURATION)
        self._unsubscribe = registry.subscribe(self._on_model)

    def close(self) -> None:
        """See no more loads."""
        self._unsubscribe()

    # --- Observer

    def call_ended(self, method: str, model: str, code: str, reason: str, seconds: float) -> None:
        """See Observer."""
        name, short = self._known(model), method.removeprefix("/")
        self._requests.labels(short, name, code, reason).inc()
        if method in TIMED_METHODS:
            self._duration.labels(short, name, code).observe(seconds)

    def generation(self, model: str) -> "GenerationMetrics":
        """See Observer."""
        return GenerationMetrics(self._series.model(model))

    def step(self, model: str, seconds: float, rows: int) -> None:
        """See Observer."""
        series = self._series.model(model)
        series.step.observe(seconds)
        series.batch.observe(rows)

    # --- on the event loop

    async def watch_loop(self) -> None:
        """Look for ever at how late the event loop runs."""
        loop, lag = asyncio.get_running_loop(), self._series.histogram(catalog.LOOP_LAG)
        while True:
            due = loop.time() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            lag.observe(max(0.0, loop.time() - due))

    async def render(self, accept: str) -> tuple[bytes, str]:
        """(text, content type) of every metric now, in the format that an Accept header asks for.

        The picture is taken on the loop; the text, which takes tens of milliseconds with many models, is written on
        another thread.
        """
        encode, content_type = choose_encoder(accept)
        nbytes = await asyncio.to_thread(self._process_nbytes)
        picture = replace(self._picture(), process_nbytes=nbytes, certificate_end=self._certificate_end())
        scrape = _Scrape(picture, self._events)
        return await asyncio.to_thread(encode, scrape), content_type

    def _picture(self) -> Picture:
        registry = self._registry
        return Picture(self._build, self._is_ready(), registry.snapshot(), registry.statistics(), lost_lines())

    def _known(self, model: str) -> str:
        """The canonical name of a configured model; "" for any other text, so that callers make no series."""
        if not model:
            return ""
        try:
            return self._registry.resolve(model).name
        except InferdError:
            return ""

    def _on_model(self, model: ModelSnapshot) -> None:
        name = model.entry.name
        if model.removed:
            self._generations.pop(name, None)
            self._series.forget(name)
        elif model.state is ModelState.LOADED and self._generations.get(name) != model.generation:
            self._generations[name] = model.generation
            self._series.model(name).load.observe(model.load_seconds)


class GenerationMetrics:
    """A GenerationObserver."""

    def __init__(self, series: ModelSeries) -> None:
        self._series = series
        self._tokens = 0
        self._first_tokens = 0  # how many came with the first
        self._seconds = 0.0  # from the first arrival of tokens to the last

    def loaded(self, load_seconds: float) -> None:
        """See GenerationObserver."""

    def admitted(self, queue_seconds: float, load_seconds: float) -> None:
        """See GenerationObserver."""
        self._series.queue.observe(queue_seconds)
        if load_seconds > 0:
            self._series.load_wait.observe(load_seconds)

    def output(self, gap_seconds: float, completion_tokens: int) -> None:
        """See GenerationObserver."""
        if self._tokens:
            self._series.inter_token.observe(gap_seconds)
            self._seconds += gap_seconds
        else:
            self._series.first_token.observe(gap_seconds)
            self._first_tokens = completion_tokens
        self._series.completion_tokens.inc(completion_tokens - self._tokens)
        self._tokens = completion_tokens

    def interrupted(self) -> None:
        """See GenerationObserver."""
        self._series.preemptions.inc()

    def resumed(self) -> None:
        """See GenerationObserver."""
        self._series.resumes.inc()

    def ended(self, usage: Usage, timing: Timing) -> None:
        """See GenerationObserver."""
        self._series.prompt_tokens.inc(usage.prompt_tokens)
        self._series.cached_prompt_tokens.inc(usage.cached_prompt_tokens)
        later = self._tokens - self._first_tokens
        if later:
            self._series.per_token.observe(self._seconds / later)


class _Scrape:
    """What one answer is made from; encoders take anything that collects."""

    def __init__(self, picture: Picture, events: CollectorRegistry) -> None:
        self._picture = picture
        self._events = events

    def collect(self) -> Iterator[Family]:
        yield from families(self._picture)
        yield from self._events.collect()
