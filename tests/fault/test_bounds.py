"""Bounds that are met only after a while: a limit made smaller, a watcher that never reads."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from inferd.v1 import model_service_pb2 as mod
from support.calls import Peer, failure_of, read, read_until, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.wire import facts_of, reason_of


def share_memory(config: Path, share: float) -> None:
    document = yaml.safe_load(config.read_text())
    document["models"][1]["gpu_memory_utilization"] = share  # of all it is the lowest that counts
    config.write_text(yaml.safe_dump(document))


async def reload(server: ServerProcess) -> None:
    seen = len(server.log)
    server.signal(signal.SIGHUP)
    async with asyncio.timeout(30):
        while not any("configuration reloaded" in line for line in server.log[seen:]):  # noqa: ASYNC110 - a thread's
            await asyncio.sleep(0.02)


async def test_with_a_limit_made_smaller_what_waits_is_told_and_what_runs_goes_on(
    tmp_path: Path, tiny_model: Path
) -> None:
    models = [{"name": "tiny", "path": tiny_model, "continuous_batching": False}, {"name": "other", "path": tiny_model}]
    config = write_config(tmp_path, models, budget_gb=0.1)
    with serving(config) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            running = peer.inference.StreamGenerate(streamed("tiny", prompt="x", max_tokens=2000, ignore_eos=True))
            answer = await read_until(running, "delta")
            waiting = peer.inference.StreamGenerate(streamed("tiny", prompt="x", max_tokens=10))
            await peer.wait_for_model("tiny", lambda model: model.waiting_requests == 1)
            share_memory(config, 1e-9)
            await reload(server)
            for error in (
                (await read(waiting)).failure,
                await failure_of(peer.inference.Generate(unary("tiny", prompt="x", max_tokens=10))),
            ):
                assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY")
                assert facts_of(error)["limit_bytes"] == "0"
                assert int(facts_of(error)["required_bytes"]) > 0
            await read(running, answer)
            assert answer.end.usage.completion_tokens == 2000
            share_memory(config, 0.5)
            await reload(server)
            await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=10))


@pytest.mark.long
async def test_a_watcher_that_never_reads_loses_its_watch_and_nobody_else_anything(
    tmp_path: Path, tiny_model: Path
) -> None:
    aliases = [f"{i:02}" + "x" * 126 for i in range(64)]  # 8 KiB a message
    model = {"name": "tiny", "path": tiny_model, "aliases": aliases, "preload": True}
    with serving(write_config(tmp_path, [model], budget_gb=0.1)) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer, small_window(server.address) as channel:
            watch = channel.unary_stream("/inferd.v1.ModelService/WatchModels")(b"")
            await watch.read()
            attentive = peer.models.WatchModels(mod.WatchModelsRequest())
            assert (await attentive.read()).WhichOneof("event") == "snapshot"
            pins = asyncio.ensure_future(count_changes(attentive, 1200))
            for number in range(1200):
                await peer.models.LoadModel(mod.LoadModelRequest(name="tiny", pin=number % 2 == 0), timeout=20)
            assert await asyncio.wait_for(pins, 60) == 1200
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await count_messages(watch)
            assert (caught.value.code(), reason_of(caught.value)) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "SLOW_CONSUMER",
            )
            assert facts_of(caught.value)["limit_changes"] == "1024"
            await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=2))


def small_window(address: str) -> grpc.aio.Channel:
    """A connection that takes 64 KiB ahead of what is read, and no more."""
    options = {"use_local_subchannel_pool": 1, "http2.bdp_probe": 0, "http2.lookahead_bytes": 65_535}
    return grpc.aio.insecure_channel(address, options=[(f"grpc.{name}", value) for name, value in options.items()])


async def count_changes(watch: Any, most: int) -> int:
    """Of a watch, up to `most`."""
    count = 0
    while count < most:
        count += (await watch.read()).WhichOneof("event") == "changed"
    watch.cancel()
    return count


async def count_messages(watch: Any) -> int:
    count = 0
    while await watch.read() is not grpc.aio.EOF:
        count += 1
    return count
