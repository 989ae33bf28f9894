"""The machine under the server fails: the address is taken, the clock jumps, the log can't be written, files and memory
run out."""

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from support import frames
from support.contention import Client, policy
from support.servers import ServerProcess, serving, write_config
from support.wholeness import Witness
from support.wire import facts_of, reason_of

pytestmark = [pytest.mark.faults, pytest.mark.long]

TESTS = str(Path(__file__).parents[1])
FAULTY = ("-m", "fakes.faulty_server")
CLOCK = ("-m", "fakes.jumping_clock")
MEMORY = ("-m", "fakes.small_memory")
PIPE_NBYTES = 4096


def configured(tmp_path: Path, folders: dict[str, Path], metrics_port: int = 0, **server: Any) -> Path:
    """Both models fit."""
    models = [{"name": name, "path": folders[name], "estimated_memory_gb": 1} for name in ("one", "two")]
    manager = {"request_overrides": ["fail", "wait", "preempt"]}
    metrics = {"listen": f"127.0.0.1:{metrics_port}"}
    return write_config(tmp_path, models, budget_gb=2.5, server=server, manager=manager, metrics=metrics)


# --- the address ------------------------------------------------------------------------------------------------


async def test_a_second_server_on_the_port_says_so_and_the_first_goes_on(
    server: ServerProcess, witness: Witness, folders: dict[str, Path], tmp_path: Path
) -> None:
    client = Client(server.address)
    bystander = await client.ask("one", 90_000).tokens(2)
    config = configured(tmp_path, folders, listen=server.address)
    second = ServerProcess(["serve", "--config", str(config)])
    try:
        assert await asyncio.to_thread(second.wait) == 1
        (line,) = [line for line in second.log if line.startswith("error: ")]
        assert server.address in line
        assert "Traceback" not in "".join(second.log)
    finally:
        second.close()
    await bystander.tokens(len(bystander.output.ids) + 5)
    await bystander.leave()
    await client.close()


# --- the clock --------------------------------------------------------------------------------------------------


async def test_a_wall_clock_that_jumps_moves_no_deadline_and_no_wait(folders: dict[str, Path], tmp_path: Path) -> None:
    config = configured(tmp_path, folders, request_timeout_s=60)
    environ = {"PYTHONPATH": _path(), "INFERD_TEST_STEP_SECONDS": "0.002"}
    with serving(config, program=CLOCK, **environ) as server:
        witness = await Witness.of(server, "one", "two")
        client = Client(server.address)
        running = await client.ask("one", 90_000).tokens(2)
        limited = client.ask("two", 90_000, timeout=4.0)
        await limited.tokens(1)
        loaded_time = (await client.model("one")).state_time.seconds
        for _ in range(3):  # a day ahead, a day back, right again
            server.signal(signal.SIGUSR2)
            await running.tokens(len(running.output.ids) + 20)
            assert (await client.answer("two")).ids == witness.right["two"]
            assert not limited.is_over
        assert (await client.model("one")).state_time.seconds == loaded_time
        assert (await limited.error()).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert 3.5 < limited.seconds < 30
        await running.leave()
        await client.close()
        await witness.check()


# --- the log ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk() -> Iterator[int]:
    """Every write fails: no space left on device."""
    file = os.open("/dev/full", os.O_WRONLY)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def closed_pipe() -> Iterator[int]:
    """Every write fails: who read the log has died."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@contextlib.contextmanager
def stuck_pipe() -> Iterator[int]:
    """Writes block once a page is full: who reads the log has stopped reading."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_NBYTES)
    try:
        yield writing
    finally:
        os.close(writing)
        os.close(reading)


@pytest.mark.parametrize("sink", [full_disk, closed_pipe, stuck_pipe])
async def test_a_log_that_cannot_be_written_holds_nobody_up(
    folders: dict[str, Path], tmp_path: Path, sink: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = configured(tmp_path, folders, port)
    with sink() as stderr:
        server = ServerProcess(["serve", "--config", str(config)], stderr=stderr)
        try:
            await asyncio.to_thread(server.wait_until_listening)
            client = Client(server.address)
            await _until_ready(client)
            witness = await Witness.of(server, "one", "two", metrics=f"http://127.0.0.1:{port}/metrics")
            for _ in range(100):  # a line each
                assert (await client.answer("one", timeout=20)).ids == witness.right["one"]
            await client.close()
            await witness.check()
            server.signal()
            assert await asyncio.to_thread(server.wait, 20) == 0
        finally:
            server.close()


async def _until_ready(client: Client) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await client.answer("one")
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await asyncio.sleep(0.1)


# --- files and memory -------------------------------------------------------------------------------------------


async def test_no_file_descriptors_left_refuses_newcomers_alone_and_is_over_when_some_are_free(
    server: ServerProcess, witness: Witness
) -> None:
    client = Client(server.address)
    await client.unload("two", "FORCE")
    bystander = await client.ask("one", 90_000).tokens(2)
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    low = psutil.Process(server.pid).num_fds() + 10
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (low, limits[1]))
    witness.allowed = "."  # what can't be opened may be told
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(frames.connect(server.address))
            async with asyncio.timeout(20):
                while psutil.Process(server.pid).num_fds() < low:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            assert (await client.answer("one", timeout=20)).ids == witness.right["one"]
            error = await client.ask("two", contention=policy("fail")).error()  # its files can't be opened
            assert error.code() is not grpc.StatusCode.UNKNOWN
            assert reason_of(error)
            await bystander.tokens(len(bystander.output.ids) + 5)
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    newcomer = Client(server.address)
    await newcomer.load("two")
    assert (await newcomer.answer("two", timeout=20)).ids == witness.right["two"]
    await bystander.leave()
    await newcomer.close()
    await client.close()


async def test_more_requests_than_memory_holds_wait_or_are_told_so(folders: dict[str, Path], tmp_path: Path) -> None:
    config = configured(tmp_path, folders)
    limit = 12 * 2**20
    with serving(config, program=MEMORY, PYTHONPATH=_path(), INFERD_TEST_WORK_LIMIT=str(limit)) as server:
        witness = await Witness.of(server, "one", "two")
        client = Client(server.address)

        async def ask(number: int) -> str:
            prompt = "x" * (50 * (1 + number % 8) if number % 10 else 30_000)
            try:
                await client.answer(("one", "two")[number % 2], 50, prompt=prompt, timeout=60)
            except grpc.aio.AioRpcError as error:
                return f"{reason_of(error)} {facts_of(error).get('limit_bytes')}"
            return "OK"

        outcomes = Counter(await asyncio.gather(*(ask(number) for number in range(60))))
        assert outcomes == {"OK": 54, f"OUT_OF_MEMORY {limit}": 6}
        await client.close()
        await witness.check()


def _path() -> str:
    return os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
