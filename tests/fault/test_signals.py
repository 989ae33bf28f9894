"""SIGTERM in each phase, with everything open that can be: every caller is told, the exit code is 0, and the address is
free for the next server at once."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferd.v1 import inference_service_pb2, model_service_pb2
from support.contention import Client, policy, serving_with_faults
from support.servers import ServerProcess, write_config
from support.wholeness import TROUBLE
from support.wire import end_of

pytestmark = [pytest.mark.faults, pytest.mark.long]

EXIT_SECONDS = 20
ENDS = {"SERVER_STARTING", "SERVER_DRAINING", "SERVER_SHUTDOWN", "UNAVAILABLE"}
"""What a caller may be told. The bare code: the call came when nobody listened any more."""


@dataclass
class Callers:
    """Everything that may be open when the signal comes; each call ends with a reason or well."""

    client: Client
    ends: dict[str, list[str]] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def add(self, name: str, call: Awaitable[Any]) -> None:
        async def note() -> None:
            try:
                await call
                end = "OK"
            except grpc.aio.AioRpcError as error:
                end = end_of(error)
            self.ends.setdefault(name, []).append(end)

        self.tasks.append(asyncio.create_task(note()))

    def open_everything(self) -> None:
        """Streams that run, wait for a row and wait for a load; unary calls, loads, an unload, watches."""
        client = self.client
        for number in range(6):
            self.add("stream", client.ask("one", 90_000, priority=number % 3)._task)
        self.add("short stream", client.ask("one", 20)._task)
        for _ in range(3):
            self.add("waiting for a load", client.ask("slow-load", 10, contention=policy("wait"))._task)
        self.add("load", client.load("slow-load", contention=policy("wait")))
        self.add("unload", client.unload("one", "DRAIN"))
        self.add("watch", _read(client.models.WatchModels(model_service_pb2.WatchModelsRequest())))
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "readiness", "inferd.v1.Model/one", "unknown"):
            self.add("watch", _read(health.Watch(health_pb2.HealthCheckRequest(service=name))))

    async def all_told(self) -> None:
        """Every call has ended, with a reason that says that the server stops."""
        async with asyncio.timeout(EXIT_SECONDS):
            await asyncio.gather(*self.tasks)
        print(self.ends)
        for name, ends in self.ends.items():
            assert set(ends) <= ENDS | {"OK"}, (name, ends)


async def _read(call: Any) -> None:
    async for _ in call:
        pass


async def preloading(client: Client) -> None:
    await client.until_state("slow-load", "LOADING")


async def idle(client: Client) -> None:
    await client.until_state("one", "LOADED")


async def streaming(client: Client) -> None:
    await idle(client)
    await client.run("one")


async def loading(client: Client) -> None:
    await idle(client)
    await client.load("slow-load", detach=True)
    await client.until_state("slow-load", "LOADING")


PHASES: dict[str, Callable[[Client], Awaitable[None]]] = {
    each.__name__: each for each in (preloading, idle, streaming, loading)
}


@contextlib.asynccontextmanager
async def served(folders: dict[str, Path], tmp_path: Path, phase: str, **settings: Any) -> AsyncIterator[ServerProcess]:
    """A server of its own; afterwards its log tells of no trouble."""
    preload = "slow-load" if phase == "preloading" else "one"
    models = [{"name": name, "path": path, "preload": name == preload} for name, path in folders.items()]
    settings = {"drain_timeout_s": 1, "drain_delay_s": 0.3, **settings}
    config = write_config(tmp_path, models, budget_gb=1, server=settings)
    environ = {"INFERD_TEST_LOAD_SECONDS": "60", "INFERD_TEST_STEP_SECONDS": "0.002"}
    with serving_with_faults(config, **environ) as server:
        yield server
        assert not [line for line in server.log if TROUBLE.search(line)], server.log


@pytest.mark.parametrize("phase", PHASES)
async def test_a_sigterm_ends_the_server_well(folders: dict[str, Path], tmp_path: Path, phase: str) -> None:
    async with served(folders, tmp_path, phase) as server:
        client = Client(server.address)
        await PHASES[phase](client)
        callers = Callers(client)
        if phase != "idle":
            callers.open_everything()
            await asyncio.sleep(0.2)  # some are on their way, some not
        server.signal(signal.SIGTERM)
        await callers.all_told()
        assert await asyncio.to_thread(server.wait, EXIT_SECONDS) == 0
        await client.close()
    await is_free(server.address, folders["one"], tmp_path)


async def is_free(address: str, folder: Path, tmp_path: Path) -> None:
    """Another server can have the address at once."""
    config = write_config(tmp_path, [{"name": "one", "path": folder}], budget_gb=1, server={"listen": address})
    with serving_with_faults(config) as again:
        assert again.address == address


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_a_draining_server_at_once(
    folders: dict[str, Path], tmp_path: Path, number: signal.Signals
) -> None:
    async with served(folders, tmp_path, "streaming", drain_timeout_s=600) as server:
        client = Client(server.address)
        await streaming(client)
        server.signal(signal.SIGTERM)
        async with asyncio.timeout(EXIT_SECONDS):
            info = inference_service_pb2.GetServerInfoRequest()
            while not (await client.inference.GetServerInfo(info)).draining:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        server.signal(number)
        assert await asyncio.to_thread(server.wait, EXIT_SECONDS) == 128 + number
        await client.close()


async def test_a_sigterm_before_the_port_is_open_ends_quietly(folders: dict[str, Path], tmp_path: Path) -> None:
    config = write_config(tmp_path, [{"name": "one", "path": folders["one"]}], budget_gb=1)
    command = [sys.executable, "-m", "inferd_server", "serve", "--config", str(config)]
    codes = []
    for seconds in (0.05, 0.3, 0.6, 0.9, 1.2, 1.5, 2, random.uniform(0, 3)):
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        await asyncio.sleep(seconds)
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), EXIT_SECONDS)
        assert not TROUBLE.search(log.decode())
        codes.append(process.returncode)
    print(codes)
    assert set(codes) <= {0, -signal.SIGTERM}  # the latter until Python itself has started
