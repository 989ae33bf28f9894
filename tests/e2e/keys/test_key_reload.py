"""A keys file that changes under a running server: new rules, revoked keys, broken files."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support.calls import Peer, read, read_until, streamed, unary
from support.keys import As, Keys
from support.servers import ServerProcess, serving, write_config
from support.wire import reason_of


def reloaded(server: ServerProcess, keys: Keys, expected: str = "keys reloaded") -> None:
    """Write the file and wait until the log says that it was read."""
    seen = len(server.log)
    keys.write()
    server.wait_for_log(expected, since=seen)


async def drained(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


@pytest.mark.faults
async def test_a_revoked_key_s_stream_finishes_its_watch_ends_and_new_calls_are_refused(
    server: ServerProcess, peer: Peer, keys: Keys
) -> None:
    streamer, watcher = As(peer, keys, "streamer"), As(peer, keys, "watcher")
    stream = streamer.call(
        "StreamGenerate", streamed("open-a", prompt="x", max_tokens=3000, ignore_eos=True, return_ids=True)
    )
    answer = await read_until(stream, "delta")
    watch = watcher.call("WatchModels", mod.WatchModelsRequest())
    watching = aiter(watch)
    await anext(watching)
    checks = peer.health.Watch(
        health_pb2.HealthCheckRequest(service="inferd.v1.Model/open-a"), metadata=watcher.metadata
    )
    assert (await checks.read()).status == health_pb2.HealthCheckResponse.SERVING
    keys.remove("streamer")
    keys.remove("watcher")
    await asyncio.to_thread(reloaded, server, keys)
    assert await streamer.outcome("GetServerInfo", inf.GetServerInfoRequest()) == "CREDENTIALS_INVALID"
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await drained(watching)
    assert reason_of(ended.value) == "CREDENTIALS_INVALID"
    answer = await read(stream, answer)
    # Health needs no key, so its watch goes on: as one that may see no model, from its next look on.
    root = As(peer, keys, "root")
    await root.call("LoadModel", mod.LoadModelRequest(name="open-b"))
    await root.call("UnloadModel", mod.UnloadModelRequest(name="open-b"))
    assert (await checks.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    checks.cancel()
    assert (answer.end.usage.completion_tokens, len(answer.token_ids)) == (3000, 3000)
    assert await As(peer, keys, "team").outcome("GetServerInfo", inf.GetServerInfoRequest()) == "OK"


async def test_changed_rules_count_from_the_next_call_on_and_for_open_watches(
    server: ServerProcess, peer: Peer, keys: Keys
) -> None:
    changing, root = As(peer, keys, "changing"), As(peer, keys, "root")
    await root.call("UnloadModel", mod.UnloadModelRequest(name="open-b"))
    watching = aiter(changing.call("WatchModels", mod.WatchModelsRequest()))
    assert [model.name for model in (await anext(watching)).snapshot.models] == ["open-a", "open-b"]
    keys.set("changing", models=["open-b"], methods=["observe"])
    await asyncio.to_thread(reloaded, server, keys)
    assert await changing.outcome("Generate", unary("open-b", prompt="x")) == "METHOD_DENIED"
    assert await changing.outcome("GetModel", mod.GetModelRequest(name="open-a")) == "MODEL_DENIED"
    await root.call("UnloadModel", mod.UnloadModelRequest(name="open-a"))
    await root.call("LoadModel", mod.LoadModelRequest(name="open-a"))
    await root.call("LoadModel", mod.LoadModelRequest(name="open-b"))
    assert (await anext(watching)).changed.name == "open-b"


def test_a_broken_file_changes_nothing_and_is_logged_by_problem_without_its_texts(
    server: ServerProcess, keys: Keys
) -> None:
    good = keys.path.read_text()
    seen = len(server.log)
    keys.path.write_text("keys:\n- id: my secret\n  hash: plain-text-secret\n  limit: 3\n")
    server.wait_for_log("keys refused; nothing changed")
    told = "\n".join(server.log[seen:])
    for path in ("keys[0].id", "keys[0].hash", "keys[0].limit"):
        assert path in told
    assert "plain-text-secret" not in told
    assert "my secret" not in told

    async def still_served() -> None:
        async with Peer(server.address) as peer:
            assert await As(peer, keys, "team").outcome("GetServerInfo", inf.GetServerInfoRequest()) == "OK"

    asyncio.run(still_served())
    keys.path.write_text(good)
    server.signal(signal.SIGHUP)
    server.wait_for_log("configuration reloaded")


CHANGES_WHILE_IT_STARTS = """
import asyncio, os, sys
from functools import partial
from pathlib import Path
from inferd_server.app import serve
from inferd_server.config import load_config

config = load_config(Path(sys.argv[3]))
os.replace(os.environ["FRESH"], config.keys_path)
os._exit(asyncio.run(serve(config, announce=partial(print, flush=True))))
"""

IS_HUNG_UP_AT_EACH_CHANGE = """
import sys
from inferd_server.__main__ import commands
from inferd_server.app.reloading import Reloads

watch = Reloads._watch_keys

async def watch_keys(reloads):
    wake = reloads._asked.set
    reloads._asked.set = lambda: (setattr(reloads, "_is_all_to_be_reloaded", True), wake())
    await watch(reloads)

Reloads._watch_keys = watch_keys
commands()
"""


async def wait_until_revoked(server: ServerProcess, keys: Keys, key_id: str) -> None:
    async with Peer(server.address) as peer, asyncio.timeout(20):
        while await As(peer, keys, key_id).outcome("GetServerInfo", inf.GetServerInfoRequest()) == "OK":  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def config_with(keys: Keys, model: Path) -> Path:
    return write_config(
        keys.path.parent, [{"name": "tiny", "path": model}], budget_gb=1, auth={"keys_file": keys.path.name}
    )


async def test_a_key_that_is_revoked_while_the_server_starts_is_revoked(tmp_path: Path, tiny_model: Path) -> None:
    keys = Keys(tmp_path / "keys.yaml", revoked={}, other={})
    before = keys.path.read_text()
    keys.remove("revoked")
    keys.write()
    fresh = keys.path.rename(tmp_path / "fresh.yaml")
    keys.path.write_text(before)
    program = ("-c", CHANGES_WHILE_IT_STARTS)
    with serving(config_with(keys, tiny_model), program=program, FRESH=str(fresh)) as server:
        await wait_until_revoked(server, keys, "revoked")


async def test_a_key_is_revoked_though_a_reload_of_everything_comes_with_it_and_is_refused(
    tmp_path: Path, tiny_model: Path
) -> None:
    keys = Keys(tmp_path / "keys.yaml", revoked={})
    config = config_with(keys, tiny_model)
    with serving(config, program=("-c", IS_HUNG_UP_AT_EACH_CHANGE)) as server:
        config.write_text("nothing: of use")
        keys.remove("revoked")
        keys.write()
        await wait_until_revoked(server, keys, "revoked")
        server.wait_for_log("configuration refused")
