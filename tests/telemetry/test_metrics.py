"""Metrics: what is told is counted exactly, what is read is there, and no caller can make a series."""

import asyncio
import threading
import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fakes.registry import FakeRegistry, entry
from inferd_server.core.generation import Timing, Usage
from inferd_server.core.model import ModelState
from inferd_server.registry.instances import Counters
from inferd_server.registry.registry import MemorySnapshot, RegistrySnapshot, RegistryStatistics
from inferd_server.telemetry import catalog, metrics
from inferd_server.telemetry.metrics import Metrics
from inferd_server.telemetry.picture import Build, Picture, families
from support.scraping import Figures

GENERATE = "/inferd.v1.InferenceService/Generate"
LONG_NAME = "m" * 128


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry(entry("big"), entry("tiny", "small"), entry(LONG_NAME))


@pytest.fixture
def watched(registry: FakeRegistry) -> Metrics:
    return Metrics(registry, Build("0.1", "0.32", "cpu"), lambda: True)


async def figures(watched: Metrics) -> Figures:
    text, _ = await watched.render("")
    return Figures.of(text.decode())


async def test_calls_count_by_method_canonical_model_code_and_reason(watched: Metrics) -> None:
    for name in ("tiny", "small", LONG_NAME):
        watched.call_ended(GENERATE, name, "OK", "", 0.3)
    watched.call_ended(GENERATE, "tiny", "RESOURCE_EXHAUSTED", "QUEUE_FULL", 0.001)
    watched.call_ended("/grpc.health.v1.Health/Check", "", "OK", "", 0.001)
    seen, method = await figures(watched), GENERATE[1:]
    assert seen("inferd_requests_total", method=method, model="tiny", code="OK", reason="") == 2
    assert seen("inferd_requests_total", method=method, model=LONG_NAME) == 1
    assert seen("inferd_requests_total", code="RESOURCE_EXHAUSTED", reason="QUEUE_FULL") == 1
    assert seen("inferd_requests_total", method="grpc.health.v1.Health/Check", model="") == 1
    assert seen("gen_ai_server_request_duration_seconds_sum", model="tiny", code="OK") == pytest.approx(0.6)
    assert seen("gen_ai_server_request_duration_seconds_count") == 4


async def test_names_that_are_not_configured_share_one_series(watched: Metrics) -> None:
    watched.call_ended(GENERATE, "nope", "NOT_FOUND", "MODEL_NOT_FOUND", 0.001)
    before = await figures(watched)
    for number in range(1000):
        watched.call_ended(GENERATE, f"x{number}\n", "NOT_FOUND", "MODEL_NOT_FOUND", 0.001)
    seen = await figures(watched)
    assert seen.values.keys() == before.values.keys()
    assert seen("inferd_requests_total", model="", code="NOT_FOUND") == 1001


async def test_one_request_from_its_row_to_its_end(watched: Metrics) -> None:
    request = watched.generation("tiny")
    request.admitted(1.5, 2.5)
    request.output(5.0, 1)
    request.output(0.1, 3)
    request.interrupted()
    request.resumed()
    request.output(0.5, 4)
    request.ended(Usage(100, 60), Timing())
    seen = await figures(watched)
    assert seen("inferd_request_queue_seconds_sum", model="tiny") == 1.5
    assert seen("inferd_request_load_seconds_sum", model="tiny") == 2.5
    assert seen("gen_ai_server_time_to_first_token_seconds_sum", model="tiny") == 5
    assert seen("inferd_inter_token_seconds_count", model="tiny") == 2
    assert seen("inferd_inter_token_seconds_sum", model="tiny") == pytest.approx(0.6)
    assert seen("gen_ai_server_time_per_output_token_seconds_sum", model="tiny") == pytest.approx(0.2)
    assert seen("inferd_completion_tokens_total", model="tiny") == 4
    assert seen("inferd_prompt_tokens_total", model="tiny") == 100
    assert seen("inferd_cached_prompt_tokens_total", model="tiny") == 60
    assert seen("inferd_request_preemptions_total") == seen("inferd_request_resumes_total") == 1


async def test_a_request_that_found_its_model_loaded_and_made_no_token(watched: Metrics) -> None:
    request = watched.generation("tiny")
    request.admitted(0.0, 0.0)
    request.ended(Usage(7, 0), Timing())
    seen = await figures(watched)
    assert seen("inferd_request_queue_seconds_count", model="tiny") == 1
    assert seen("inferd_request_load_seconds_count", model="tiny") == 0
    assert seen("gen_ai_server_time_to_first_token_seconds_count") == 0
    assert seen("gen_ai_server_time_per_output_token_seconds_count") == 0


async def test_each_load_counts_once_however_often_its_model_is_reported(
    watched: Metrics, registry: FakeRegistry
) -> None:
    registry.set("tiny", state=ModelState.LOADING, generation=1, load_progress=0.5)
    registry.set("tiny", state=ModelState.LOADED, load_seconds=2.0)
    registry.set("tiny", pinned=True)
    registry.set("tiny", generation=2, load_seconds=3.0)
    registry.set("tiny", state=ModelState.DRAINING)
    seen = await figures(watched)
    assert seen("inferd_model_load_seconds_count", model="tiny") == 2
    assert seen("inferd_model_load_seconds_sum", model="tiny") == 5


async def test_a_model_that_leaves_the_registry_takes_its_series_along(
    watched: Metrics, registry: FakeRegistry
) -> None:
    late = watched.generation("tiny")
    for name in ("tiny", "big"):
        registry.set(name, state=ModelState.LOADED, generation=1)
        watched.step(name, 0.01, 2)
        watched.call_ended(GENERATE, name, "OK", "", 0.1)
    registry.set("tiny", removed=True)
    del registry.models["tiny"]
    late.output(1.0, 1)
    late.ended(Usage(3, 0), Timing())
    watched.call_ended(GENERATE, "tiny", "OK", "", 0.1)
    seen = await figures(watched)
    assert {model for name, own in seen.values for label, model in own if label == "model"} == {"big", LONG_NAME, ""}
    assert seen("inferd_engine_batch_size_sum", model="big") == 2


async def test_a_model_that_comes_back_begins_anew(watched: Metrics, registry: FakeRegistry) -> None:
    watched.generation("tiny").output(1.0, 5)
    there = registry.models["tiny"]
    registry.set("tiny", removed=True)
    registry.models["tiny"] = there
    watched.generation("tiny").output(1.0, 2)
    assert (await figures(watched))("inferd_completion_tokens_total", model="tiny") == 2


async def test_steps_are_told_from_any_thread(watched: Metrics) -> None:
    def work() -> None:
        for _ in range(500):
            watched.step("tiny", 0.5, 4)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    seen = await figures(watched)
    assert seen("inferd_engine_step_seconds_sum", model="tiny") == 1000
    assert seen("inferd_engine_batch_size_count", model="tiny") == 2000


async def test_what_is_comes_from_the_snapshots(registry: FakeRegistry) -> None:
    ready = [True]
    watched = Metrics(registry, Build("0.1", "0.32", "cpu"), lambda: ready[0])
    registry.set("tiny", state=ModelState.LOADED, running=3, waiting=2, charged_nbytes=700, cache_nbytes=50)
    registry.set("tiny", step_age_seconds=4.5)
    seen = await figures(watched)
    assert seen("inferd_requests_running", model="tiny") == 3
    assert seen("inferd_requests_waiting", model="tiny") == 2
    assert seen("inferd_model_charged_bytes", model="tiny") == 700
    assert seen("inferd_model_cache_bytes", model="tiny") == 50
    assert seen("inferd_engine_last_step_age_seconds", model="tiny") == 4.5
    assert seen("inferd_model_state", model="tiny", state="loaded") == 1
    assert seen("inferd_model_state", model="tiny") == 1
    assert seen("inferd_memory_budget_bytes") == 10_000
    assert seen("inferd_build_info", version="0.1", mlx_version="0.32", device="cpu") == 1
    assert seen("inferd_ready") == 1
    ready[0] = False
    assert (await figures(watched))("inferd_ready") == 0


def test_each_figure_of_the_registry_has_its_own_metric() -> None:
    memory = MemorySnapshot(limit_nbytes=1, used_nbytes=2, reserved_nbytes=3, ceiling_nbytes=4, active_nbytes=5)
    counters = Counters(
        load_failures=7,
        deaths=8,
        evictions=9,
        preemptions=10,
        drains=11,
        idle_unloads=12,
        abandoned_loads=13,
        refusals=14,
    )
    statistics = RegistryStatistics(memory, waiting=0, leases=6, states={}, counters=counters)
    picture = Picture(
        Build("", "", ""),
        False,
        RegistrySnapshot((), memory),
        statistics,
        lost_log_lines=15,
        process_nbytes=16,
        certificate_end=17,
    )
    samples = [sample for family in families(picture) for sample in family.samples]
    assert {sample.name: sample.value for sample in samples if not sample.labels} == {
        "inferd_ready": 0,
        "inferd_memory_budget_bytes": 1,
        "inferd_memory_charged_bytes": 2,
        "inferd_memory_reserved_bytes": 3,
        "inferd_memory_ceiling_bytes": 4,
        "inferd_memory_active_bytes": 5,
        "inferd_memory_process_bytes": 16,
        "inferd_tls_certificate_end_timestamp_seconds": 17,
        "inferd_leases": 6,
        "inferd_model_load_failures_total": 7,
        "inferd_engine_deaths_total": 8,
        "inferd_model_evictions_total": 9,
        "inferd_model_preemptions_total": 10,
        "inferd_model_drains_total": 11,
        "inferd_model_idle_unloads_total": 12,
        "inferd_model_loads_abandoned_total": 13,
        "inferd_refusals_total": 14,
        "inferd_log_lines_lost_total": 15,
    }


async def test_a_blocked_loop_is_seen(watched: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LAG_INTERVAL_SECONDS", 0.05)
    watch = asyncio.create_task(watched.watch_loop())
    await asyncio.sleep(0)
    time.sleep(0.25)  # noqa: ASYNC251 - what is to be seen
    await asyncio.sleep(0.01)
    seen = await figures(watched)
    watch.cancel()
    assert seen("inferd_event_loop_lag_seconds_sum") >= 0.19


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"])
async def test_every_metric_of_the_catalog_is_served_as_the_catalog_says(watched: Metrics, accept: str) -> None:
    watched.call_ended(GENERATE, "tiny", "OK", "", 0.1)
    watched.step("tiny", 0.1, 1)
    text, content_type = await watched.render(accept)
    parse = parse_openmetrics if accept else text_string_to_metric_families
    assert ("openmetrics" in content_type) == bool(accept)
    served = {family.name: family for family in parse(text.decode()) if not family.name.startswith("process_")}
    wanted = {metric.name.removesuffix("_total"): metric for metric in catalog.METRICS}
    assert served.keys() == wanted.keys()
    for name, family in served.items():
        metric = wanted[name]
        assert family.type == metric.kind
        assert {sample.name for sample in family.samples} == set(catalog.samples(metric))
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_closed_it_sees_no_more_loads(watched: Metrics, registry: FakeRegistry) -> None:
    watched.close()
    assert registry.subscribers == []
