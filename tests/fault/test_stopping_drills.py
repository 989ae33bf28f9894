"""SIGTERM in the middle of everything: each accepted call gets a typed status and its log line, in bounded time."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from fakes.faulty_server import STEP_HANGS
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support import tiny_llama
from support.calls import Peer, read, read_until, streamed, unary
from support.contention import Client, policy, serving_with_faults
from support.servers import ServerProcess, write_config
from support.wire import reason_of

SPARE_SECONDS = 15.0
"""For the end itself (join, last traces and lines) on a machine that does other things too."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("stopping")
    return {name: tiny_llama.build(root / name, seed=seed) for name, seed in (("one", 1), ("many", 2))}


@contextmanager
def started(folders: dict[str, Path], folder: Path, budget_gb: float, **server: Any) -> Iterator[ServerProcess]:
    models = [
        {"name": "one", "path": folders["one"], "continuous_batching": False, "preload": True},
        {"name": "many", "path": folders["many"]},
        {"name": "slow-load", "path": folders["many"]},
        {"name": "stuck-load", "path": folders["many"]},
    ]
    config = write_config(
        folder,
        [{**model, "estimated_memory_gb": 1} for model in models],
        budget_gb=budget_gb,
        server=server,
        manager={"request_overrides": ["wait", "preempt"]},
    )
    stuck = folder / "stuck"
    environ = {"INFERD_TEST_STUCK": str(stuck), "INFERD_TEST_LOAD_SECONDS": "60", "INFERD_TEST_STEP_SECONDS": "0.002"}
    with serving_with_faults(config, INFERD_LOG_FORMAT="json", INFERD_LOG_LEVEL="debug", **environ) as process:
        process.stuck = stuck  # type: ignore[attr-defined]
        process.wait_for_log('"ready"')
        yield process


async def ends_in(server: ServerProcess, seconds: float) -> int:
    """The exit code; it exits by itself within `seconds` and what an end may take."""
    began = time.monotonic()
    code = await asyncio.to_thread(server.wait, seconds + SPARE_SECONDS)
    print(f"exit after {time.monotonic() - began:.2f} s")
    return code


async def outcome(call: Awaitable[Any]) -> str:
    """ "OK", or the reason of a typed error; the code of one that has none."""
    try:
        result = await call
    except grpc.aio.AioRpcError as error:
        return reason_of(error) or error.code().name
    error = getattr(result, "error", None)
    return "OK" if error is None else reason_of(error) or error.code().name


async def watched(watch: Any) -> None:
    async for _ in watch:
        pass


async def test_every_call_gets_a_typed_status_and_its_line(folders: dict[str, Path], tmp_path: Path) -> None:
    with started(folders, tmp_path, 8, drain_delay_s=0.3, drain_timeout_s=1.0) as server:
        async with Peer(server.address) as peer, Peer(server.address) as slow:
            forever = {"prompt": "x", "ignore_eos": True, "max_tokens": 4000}
            running = [peer.inference.StreamGenerate(streamed("many", **forever)) for _ in range(4)]
            serial = peer.inference.StreamGenerate(streamed("one", **forever))
            unread = slow.inference.StreamGenerate(streamed("many", top_logprobs=20, coalesce_ms=0, **forever))
            answers = [await read_until(stream, "delta") for stream in (*running, serial)]
            await unread.read()
            queued = [peer.inference.StreamGenerate(streamed("one", **forever)) for _ in range(3)]
            calls: dict[str, list[Awaitable[Any]]] = {
                "running": [
                    *(read(each, answer) for each, answer in zip((*running, serial), answers, strict=True)),
                    peer.inference.Generate(unary("many", **forever)),
                ],
                "waiting": [
                    *map(read, queued),
                    peer.inference.Generate(unary("slow-load", **forever)),
                    peer.models.LoadModel(mod.LoadModelRequest(name="slow-load")),
                ],
                "other": [
                    peer.models.UnloadModel(mod.UnloadModelRequest(name="one", mode=mod.UNLOAD_MODE_DRAIN)),
                    peer.inference.Tokenize(inf.TokenizeRequest(model="many", prompt="lorem ipsum " * 1000)),
                ],
                "watches": [
                    watched(peer.health.Watch(health_pb2.HealthCheckRequest(service="readiness"))),
                    watched(peer.health.Watch(health_pb2.HealthCheckRequest(service="nothing"))),
                    watched(peer.models.WatchModels(mod.WatchModelsRequest())),
                ],
            }
            outcomes = {kind: [asyncio.ensure_future(outcome(call)) for call in each] for kind, each in calls.items()}
            await peer.wait_for_model("slow-load", lambda model: model.state == mod.MODEL_STATE_LOADING)
            await peer.wait_for_model("many", lambda model: model.running_requests == 6)
            await peer.wait_for_model("one", lambda model: model.state == mod.MODEL_STATE_DRAINING)
            server.signal()
            ended = {kind: [await each for each in futures] for kind, futures in outcomes.items()}
            assert await ends_in(server, 1.3) == 0
            unread.cancel()
    assert set(ended["running"]) <= {"SERVER_SHUTDOWN", "OK"}
    assert set(ended["waiting"]) == {"SERVER_DRAINING"}
    assert set(ended["other"]) <= {"OK", "SERVER_SHUTDOWN"}
    assert set(ended["watches"]) == {"SERVER_SHUTDOWN"}
    lines = [json.loads(line) for line in server.log if '"inferd.access"' in line]
    methods = Counter(line["method"].rpartition("/")[2] for line in lines)
    assert methods["StreamGenerate"] == len(running) + len(queued) + 2
    assert methods["Generate"] == 2
    assert methods["Watch"] == 2
    assert all(methods[name] == 1 for name in ("LoadModel", "UnloadModel", "Tokenize", "WatchModels"))
    assert {line["reason"] for line in lines if line["code"] == "UNAVAILABLE"} == {"SERVER_DRAINING", "SERVER_SHUTDOWN"}
    assert not [line for line in server.log if "Traceback" in line or '"level": "error"' in line]


async def test_a_request_interrupted_before_the_end_still_comes_back_and_finishes(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with started(folders, tmp_path, 1.5, drain_timeout_s=60) as server:
        client = Client(server.address)
        victim = client.ask("one", 300, waiting_events=True)
        await victim.tokens(5)
        rival = client.ask("many", 200, contention=policy("preempt"))
        await rival.tokens(3)
        await victim.waits("PREEMPTED")
        server.signal()
        assert len((await rival.result(60)).ids) == 200
        output = await victim.result(60)
        assert (len(output.ids), output.finished.preemptions) == (300, 1)
        await client.close()
        assert await ends_in(server, 0) == 0


@pytest.mark.long
async def test_a_load_that_hangs_holds_the_end_for_a_bounded_time(folders: dict[str, Path], tmp_path: Path) -> None:
    with started(folders, tmp_path, 8) as server:
        server.stuck.touch()  # type: ignore[attr-defined]
        async with Peer(server.address) as peer:
            waiting = asyncio.ensure_future(outcome(peer.inference.Generate(unary("stuck-load", prompt="x"))))
            await peer.wait_for_model("stuck-load", lambda model: model.state == mod.MODEL_STATE_LOADING)
            server.signal()
            assert await waiting == "SERVER_DRAINING"
            assert await ends_in(server, 10) == 1
    assert any("an engine did not end in time" in line for line in server.log)


@pytest.mark.long
async def test_a_step_that_hangs_holds_the_end_for_a_bounded_time(folders: dict[str, Path], tmp_path: Path) -> None:
    with started(folders, tmp_path, 8, drain_timeout_s=0.5) as server:
        server.stuck.touch()  # type: ignore[attr-defined]
        async with Peer(server.address) as peer:
            request = streamed("many", prompt="x", ignore_eos=True, max_tokens=50, seed=STEP_HANGS, coalesce_ms=0)
            hanging = peer.inference.StreamGenerate(request)
            answer = await read_until(hanging, "delta")
            server.signal()
            assert await outcome(read(hanging, answer)) == "SERVER_SHUTDOWN"
            assert await ends_in(server, 10.5) == 1
