"""The metrics of a real server: each figure after requests whose course is known; and nothing where nobody watches."""

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from support import tiny_llama
from support.contention import Client, policy
from support.scraping import Figures, metrics_url, scrape
from support.servers import ServerProcess, serving, write_config

STREAM = "inferd.v1.InferenceService/StreamGenerate"
GIB = 2**30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves `a` (alias `first`) and `b`, of which one fits."""
    folder = tmp_path_factory.mktemp("metrics")
    models = [
        {
            "name": name,
            "path": tiny_llama.build(folder / name, seed=seed),
            "estimated_memory_gb": 1,
            "aliases": aliases,
        }
        for name, seed, aliases in (("a", 1, ["first"]), ("b", 2, []))
    ]
    manager = {"request_overrides": ["fail", "wait", "preempt"]}
    config = write_config(folder, models, budget_gb=1.5, manager=manager, metrics={"listen": "127.0.0.1:0"})
    with serving(config) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    client = Client(server.address)
    yield client
    await client.clear()
    await client.close()


class Watch:
    """What changed since it began."""

    def __init__(self, url: str, before: Figures) -> None:
        self._url = url
        self._before = before
        self.now = before

    @classmethod
    async def begin(cls, server: ServerProcess) -> "Watch":
        url = metrics_url(server)
        return cls(url, await scrape(url))

    async def look(self) -> None:
        self.now = await scrape(self._url)

    def __call__(self, name: str, **labels: str) -> float:
        return self.now(name, **labels) - self._before(name, **labels)


async def test_a_request_that_loads_its_model_counts_everywhere_once(server: ServerProcess, client: Client) -> None:
    watch = await Watch.begin(server)
    answer = await client.answer("first", 20)
    await client.settled()
    await watch.look()
    assert watch("inferd_requests_total", method=STREAM, model="a", code="OK", reason="") == 1
    assert watch("gen_ai_server_request_duration_seconds_count", method=STREAM, model="a", code="OK") == 1
    assert watch("gen_ai_server_time_to_first_token_seconds_count", model="a") == 1
    assert watch("gen_ai_server_time_per_output_token_seconds_count", model="a") == 1
    assert watch("inferd_completion_tokens_total", model="a") == 20
    assert watch("inferd_prompt_tokens_total", model="a") == answer.finished.usage.prompt_tokens
    assert 0 < watch("inferd_inter_token_seconds_count", model="a") <= 19
    assert watch("inferd_request_queue_seconds_count", model="a") == 1
    assert watch("inferd_request_load_seconds_count", model="a") == 1
    assert watch("inferd_model_load_seconds_count", model="a") == 1
    first = watch("gen_ai_server_time_to_first_token_seconds_sum", model="a")
    assert first >= watch("inferd_request_load_seconds_sum", model="a") > 0
    assert watch("gen_ai_server_request_duration_seconds_sum", model="a") >= first
    assert watch("inferd_engine_step_seconds_count", model="a") >= 20
    batch = watch("inferd_engine_batch_size_sum", model="a")
    assert batch == watch("inferd_engine_batch_size_count", model="a") >= 20
    assert watch.now("inferd_model_state", model="a", state="loaded") == 1
    assert watch.now("inferd_model_charged_bytes", model="a") == watch.now("inferd_memory_charged_bytes") == GIB
    assert watch.now("inferd_memory_budget_bytes") == 1.5 * GIB
    assert watch.now("inferd_memory_active_bytes") > 0
    assert watch.now("inferd_engine_last_step_age_seconds") == 0
    assert watch.now("inferd_ready") == 1
    async with asyncio.timeout(10):  # it is sampled once a second
        while not watch.now("inferd_event_loop_lag_seconds_count"):
            await asyncio.sleep(0.1)
            await watch.look()


async def test_refusals_count_by_reason_and_unknown_names_make_no_series(server: ServerProcess, client: Client) -> None:
    watch = await Watch.begin(server)
    for name in ("nope", "nope2", "x" * 5000):
        error = await client.ask(name).error()
        assert error.code() is grpc.StatusCode.NOT_FOUND
    error = await client.ask("a", stop=["x"] * 1000).error()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    await client.settled()
    await watch.look()
    assert watch("inferd_requests_total", method=STREAM, model="", code="NOT_FOUND", reason="MODEL_NOT_FOUND") == 3
    assert watch("inferd_requests_total", model="a", code="INVALID_ARGUMENT", reason="INVALID_PARAMETER") == 1
    assert watch.now.labels("inferd_requests_total", "model") <= {"a", "b", ""}


async def test_cancels_count_by_who_cancelled(server: ServerProcess, client: Client) -> None:
    watch = await Watch.begin(server)
    await (await client.run("a")).leave()
    answer = await client.run("a", request_id="r")
    assert await client.cancel("r")
    await answer.error()
    await client.settled()
    await watch.look()
    assert watch("inferd_requests_total", method=STREAM, model="a", code="CANCELLED", reason="") == 1
    assert watch("inferd_requests_total", model="a", code="CANCELLED", reason="CANCELLED_BY_REQUEST") == 1
    assert watch("inferd_completion_tokens_total", model="a") >= 4
    assert watch("inferd_prompt_tokens_total", model="a") > 0


async def test_a_preemption_counts_for_the_request_and_for_the_model(server: ServerProcess, client: Client) -> None:
    watch = await Watch.begin(server)
    victim = client.ask("a", 60)
    await victim.tokens(10)
    await client.answer("b", 3, contention=policy("preempt"))
    assert (await victim.result()).finished.preemptions == 1
    await client.settled()
    await watch.look()
    assert watch("inferd_request_preemptions_total", model="a") == 1
    assert watch("inferd_request_resumes_total", model="a") == 1
    assert watch("inferd_model_preemptions_total") == 1
    assert watch("inferd_model_evictions_total") >= 1  # of b, idle, for a again
    assert watch("inferd_model_load_seconds_count", model="a") == 2
    assert watch("inferd_request_load_seconds_count", model="a") == 1  # of its first admission
    assert watch("inferd_completion_tokens_total", model="a") == 60
    assert watch("inferd_completion_tokens_total", model="b") == 3
    assert watch("inferd_requests_total", method=STREAM, code="OK") == 2


async def test_running_and_waiting_are_what_they_are_now(server: ServerProcess, client: Client) -> None:
    await client.run("a")
    await client.run("a")
    waiting = client.ask("b", contention=policy("wait"), waiting_events=True)
    await waiting.until(lambda output: output.waiting)
    seen = await scrape(metrics_url(server))
    assert seen("inferd_requests_running", model="a") == seen("inferd_leases") == 2
    assert seen("inferd_requests_waiting", model="b") == 1
    assert seen("inferd_model_cache_bytes", model="a") > 0
    for answer in client._answers:
        await answer.leave()
    await client.settled()


async def test_nobody_can_hold_up_the_server_from_the_metrics_port(server: ServerProcess, client: Client) -> None:
    host, port = metrics_url(server).removeprefix("http://").removesuffix("/metrics").split(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    await client.answer("a", 5)
    for _, writer in idle:
        writer.transport.abort()
    await asyncio.gather(*(writer.wait_closed() for _, writer in idle), return_exceptions=True)
    async with asyncio.timeout(5):
        while True:
            try:
                await scrape(metrics_url(server))
                break
            except OSError:
                await asyncio.sleep(0.02)


def test_a_server_that_nobody_watches_imports_no_metrics_library(tiny_model: Path, tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from inferd_server.app import App
from inferd_server.config import load_config
from inferd_server.core.observer import UNOBSERVED

async def main():
    app = App(load_config(Path(sys.argv[1]), {}, {}))
    assert app._rooms.monitoring is None
    assert app._rooms.generations._observer is app._rooms.loader.observer is UNOBSERVED
    assert len(app._rooms.server._around._layers) == 5

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith(("prometheus_client", "inferd_server.telemetry.metrics"))]
"""
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model}], budget_gb=1)
    subprocess.run([sys.executable, "-c", program, str(config)], check=True)


def test_a_metrics_port_that_is_taken_stops_the_start_with_one_line(
    server: ServerProcess, tiny_model: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model}], budget_gb=1)
    address = metrics_url(server).removeprefix("http://").removesuffix("/metrics")
    second = ServerProcess(["serve", "--config", str(config), "--metrics-listen", address])
    try:
        assert second.wait() == 1
        assert second.log[-1].startswith(f"error: can't serve metrics at {address}")
    finally:
        second.close()


def test_the_port_answers_until_the_server_has_stopped(tiny_model: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model}], budget_gb=1, server={"drain_delay_s": 1})
    with serving(config, INFERD_METRICS_LISTEN="127.0.0.1:0") as process:
        process.wait_until_ready()
        url = metrics_url(process)
        process.signal()
        process.wait_for_log("stopping")
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert b"\ninferd_ready 0.0\n" in answer.read()
        assert process.wait() == 0
