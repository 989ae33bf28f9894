"""The traces of a real server, as a collector gets them over a socket."""

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from fakes.collector import Collector, collecting, facts
from fakes.faulty_server import STEP_BREAKS_ENGINE
from inferd.v1 import inference_service_pb2 as inf
from support import tiny_embedder, tiny_llama
from support.calls import Peer
from support.contention import Client, policy, request, serving_with_faults
from support.servers import ServerProcess, serving, write_config

STREAM = "inferd.v1.InferenceService/StreamGenerate"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "a prompt that nobody else may read"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[ServerProcess]:
    """Serves `a` (alias `first`) and `b`, of which one fits; and a small embedder."""
    folder = tmp_path_factory.mktemp("tracing")
    models = [
        {
            "name": name,
            "path": tiny_llama.build(folder / name, seed=seed),
            "estimated_memory_gb": 1,
            "aliases": aliases,
        }
        for name, seed, aliases in (("a", 1, ["first"]), ("b", 2, []))
    ]
    models.append({"name": "emb", "path": tiny_embedder.build(folder / "emb"), "estimated_memory_gb": 0.1})
    config = write_config(folder, models, budget_gb=1.5, manager={"request_overrides": ["fail", "wait", "preempt"]})
    environ = {
        "INFERD_TRACING_ENDPOINT": f"http://{collector.address}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    with serving_with_faults(config, **environ) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    client = Client(server.address)
    yield client
    await client.clear()
    await client.close()


async def trace_of(collector: Collector, request_id: str) -> tuple[Span, list[Span]]:
    """The span of a request, and its children."""
    root = await asyncio.to_thread(collector.find, lambda span: facts(span).get("inferd.request_id") == request_id)
    return root, collector.children(root)


async def generate(client: Client, metadata: list[tuple[str, str]], **options: Any) -> None:
    """A request with metadata of its own, to its end."""
    call = client.inference.StreamGenerate(request("a", 3, **options), metadata=metadata)
    async for _ in call:
        pass


async def test_a_request_is_a_span_with_a_child_for_each_stretch_of_its_time(
    server: ServerProcess, collector: Collector, client: Client
) -> None:
    before = time.time_ns()
    answer = await client.answer("first", 20, request_id="whole", prompt=SECRET, stop=[SECRET], seed=2**64 - 1)
    root, children = await trace_of(collector, "whole")
    assert (root.name, root.kind, root.parent_span_id) == (STREAM, Span.SPAN_KIND_SERVER, b"")
    assert before <= root.start_time_unix_nano <= root.end_time_unix_nano <= time.time_ns()
    assert [child.name for child in children] == ["queue", "load", "queue", "prefill", "decode"]
    for earlier, later in itertools.pairwise(children):
        assert earlier.end_time_unix_nano == later.start_time_unix_nano
    assert root.start_time_unix_nano <= children[0].start_time_unix_nano
    assert children[-1].end_time_unix_nano <= root.end_time_unix_nano
    load = children[1]
    told = answer.finished.timing.load.ToNanoseconds()
    assert load.end_time_unix_nano - load.start_time_unix_nano == pytest.approx(told, rel=0.2)
    assert {child.trace_id for child in children} == {root.trace_id}
    said = facts(root)
    assert said.pop("network.peer.port") > 0
    assert said == {
        "rpc.system.name": "grpc",
        "rpc.method": STREAM,
        "rpc.response.status_code": "OK",
        "network.peer.address": "127.0.0.1",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "inferd",
        "gen_ai.request.model": "first",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.seed": -1,
        "gen_ai.response.model": "a",
        "gen_ai.response.id": "whole",
        "gen_ai.response.finish_reasons": ["max_tokens"],
        "gen_ai.usage.input_tokens": answer.finished.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "inferd.load_generation": answer.started.model.load_generation,
        "inferd.model": "a",
        "inferd.preemptions": 0,
        "inferd.priority": 0,
        "inferd.request_id": "whole",
    }
    assert root.status.code == Status.STATUS_CODE_UNSET
    line = server.wait_for_log("request_id=whole")
    for part in (f"trace_id={root.trace_id.hex()}", "completion_tokens=20", "finish_reason=max_tokens", "model=a"):
        assert part in line


async def test_the_collector_learns_who_sends_and_gets_the_headers_of_the_environment(
    collector: Collector, client: Client
) -> None:
    await client.answer("a", 1, request_id="who")
    await trace_of(collector, "who")
    assert collector.metadata[-1]["authorization"] == "Bearer abc"
    resource = {
        each.key: each.value.string_value for each in collector.requests[-1].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "inferd"
    assert resource["service.version"]
    assert resource["deployment.environment"] == "test"


async def test_an_interruption_shows_as_a_second_wait_load_and_prefill(collector: Collector, client: Client) -> None:
    victim = client.ask("a", 60, request_id="victim")
    await victim.tokens(10)
    await client.answer("b", 3, contention=policy("preempt"))
    await victim.result()
    root, children = await trace_of(collector, "victim")
    again = ["queue", "load", "queue", "prefill", "decode"]
    assert [child.name for child in children] == again + again
    assert facts(root)["inferd.preemptions"] == 1
    assert facts(root)["gen_ai.usage.output_tokens"] == 60


async def test_the_caller_s_trace_is_continued(collector: Collector, client: Client) -> None:
    metadata = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=x")]
    await generate(client, metadata, request_id="continued")
    root, children = await trace_of(collector, "continued")
    assert (root.trace_id.hex(), root.parent_span_id.hex(), root.trace_state) == (TRACE, PARENT, "vendor=x")
    assert all(child.trace_id == root.trace_id for child in children)


@pytest.mark.parametrize(
    "parent",
    [
        "garbage",
        f"00-{TRACE}-{PARENT}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01" + "x" * 4000,
    ],
    ids=["garbage", "short", "zero", "version", "long"],
)
async def test_a_traceparent_that_is_none_is_ignored(
    collector: Collector, client: Client, parent: str, request: pytest.FixtureRequest
) -> None:
    request_id = f"bad-{request.node.callspec.id}"
    await generate(client, [("traceparent", parent)], request_id=request_id)
    root, _ = await trace_of(collector, request_id)
    assert root.parent_span_id == b""
    assert root.trace_id.hex() != TRACE


async def test_what_the_caller_does_not_sample_is_not_sent_but_named_in_the_log(
    server: ServerProcess, collector: Collector, client: Client
) -> None:
    await generate(client, [("traceparent", f"00-{TRACE}-{PARENT}-00")], request_id="unsampled")
    await client.answer("a", 1, request_id="after")
    await trace_of(collector, "after")
    assert not any(facts(span).get("inferd.request_id") == "unsampled" for span in collector.spans)
    assert f"trace_id={TRACE}" in server.wait_for_log("request_id=unsampled")


async def test_failures_have_a_type_and_those_of_the_server_an_error(collector: Collector, client: Client) -> None:
    await client.ask("a", 50, seed=STEP_BREAKS_ENGINE, request_id="breaks").error()
    root, children = await trace_of(collector, "breaks")
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "ENGINE_FAILED")
    said = facts(root)
    assert (said["error.type"], said["rpc.response.status_code"]) == ("ENGINE_FAILED", "INTERNAL")
    assert said["gen_ai.usage.output_tokens"] == 2
    assert [child.name for child in children][-2:] == ["prefill", "decode"]

    error = await client.ask("nothing", 1, request_id="unknown").error()
    assert error.code() is grpc.StatusCode.NOT_FOUND
    root, children = await trace_of(collector, "unknown")
    assert (root.status.code, facts(root)["error.type"], children) == (0, "MODEL_NOT_FOUND", [])

    running = await client.run("b", request_id="left")
    await running.leave()
    root, children = await trace_of(collector, "left")
    assert facts(root)["error.type"] == "CANCELLED"
    assert children[-1].name == "decode"


async def test_a_refusal_in_the_queue_has_its_wait(collector: Collector, client: Client) -> None:
    await client.run("a", preemptible=False)
    await client.ask("b", contention=policy("wait_then_fail", wait_timeout=0.1), request_id="waited").error()
    root, [queue] = await trace_of(collector, "waited")
    assert facts(root)["error.type"] in {"WAIT_TIMEOUT", "STRATEGY_DENIED"}
    assert queue.name == "queue"
    assert "inferd.load_generation" not in facts(root)


async def test_an_embedding_is_one_span_with_its_wait_its_load_and_its_prefill(
    collector: Collector, client: Client
) -> None:
    message = inf.EmbedRequest(model="emb", texts=[SECRET], request_id="embedded", dimensions=8)
    answer = await client.inference.Embed(message)
    root, children = await trace_of(collector, "embedded")
    assert [child.name for child in children] == ["queue", "load", "queue", "prefill"]
    said = facts(root)
    assert (said["gen_ai.operation.name"], said["gen_ai.embeddings.dimension.count"]) == ("embeddings", 8)
    assert said["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert (said["inferd.model"], said["inferd.load_generation"]) == ("emb", 1)


async def test_other_calls_are_traced_too_but_no_probes(
    server: ServerProcess, collector: Collector, client: Client
) -> None:
    async with Peer(server.address) as peer:
        await peer.check("readiness")
    await client.model("b")
    span = await asyncio.to_thread(collector.find, lambda span: span.name == "inferd.v1.ModelService/GetModel")
    assert facts(span)["inferd.model"] in {"a", "b"}
    assert not any("Health" in span.name for span in collector.spans)


async def test_no_text_of_a_prompt_reaches_the_collector(collector: Collector) -> None:
    assert collector.requests
    assert not any(SECRET.encode() in message.SerializeToString() for message in collector.requests)


@pytest.mark.long
@pytest.mark.parametrize("is_deaf", [False, True], ids=["nobody there", "nobody answers"])
async def test_a_dead_collector_slows_nothing_and_holds_up_no_end(
    tiny_model: Path, tmp_path: Path, is_deaf: bool
) -> None:
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model}], budget_gb=1)
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        if is_deaf:
            dead.listen()
        endpoint = f"127.0.0.1:{dead.getsockname()[1]}"
        flags = ["--tracing-endpoint", endpoint, "--tracing-insecure", "true"]
        environ = {
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_BSP_MAX_QUEUE_SIZE": "10",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5",
        }
        with serving(config, flags=flags, **environ) as process:
            process.wait_until_ready()
            client = Client(process.address)
            await asyncio.gather(*(client.answer("tiny", 2) for _ in range(40)))
            await client.close()
            began = time.monotonic()
            process.signal()
            assert process.wait() == 0
            assert time.monotonic() - began < 10


def test_a_server_that_is_not_traced_imports_no_opentelemetry(tiny_model: Path, tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from inferd_server.app import App
from inferd_server.config import load_config

async def main():
    app = App(load_config(Path(sys.argv[1]), {}, {}))
    assert app._rooms.tracing is None

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model}], budget_gb=1)
    subprocess.run([sys.executable, "-c", program, str(config)], check=True)
