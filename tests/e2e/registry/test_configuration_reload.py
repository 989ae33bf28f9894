"""SIGHUP while requests wait, and again and again (tests/e2e/test_reload.py has the rest)."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.contention import Client, connected, serving_with_faults
from support.servers import ServerProcess, write_config


class Configured:
    """A server and its configuration file."""

    def __init__(self, folder: Path, folders: dict[str, Path]) -> None:
        self._folder, self._folders = folder, folders
        self.server: ServerProcess

    def write(self, budget_gb: float = 2.5, **aliases: str) -> Path:
        """Models of 1 GiB by name, each with one alias or none ("")."""
        models = [
            {"name": name, "path": self._folders[name], "estimated_memory_gb": 1, "aliases": [alias] if alias else []}
            for name, alias in aliases.items()
        ]
        return write_config(self._folder, models, budget_gb=budget_gb)

    async def reload(self, line: str) -> None:
        """Send the signal; returns once the log tells so."""
        told = sum(line in entry for entry in self.server.log)
        self.server.signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while sum(line in entry for entry in self.server.log) == told:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[Configured]:
    configured = Configured(tmp_path_factory.mktemp("reload"), folders)
    with ExitStack() as stack:
        config = configured.write(a="prod", b="")
        configured.server = stack.enter_context(serving_with_faults(config, INFERD_TEST_STEP_SECONDS="0.002"))
        yield configured


async def test_a_request_for_a_removed_model_that_waits_for_room_ends_as_not_found(configured: Configured) -> None:
    async with connected(configured.server) as client:
        configured.write(a="", b="", c="")
        await configured.reload("configuration reloaded")
        held: list[Any] = [await client.run(name) for name in "ab"]
        waiter = client.ask("c", waiting_events=True)
        await waiter.waits("QUEUED")
        configured.write(a="", b="")
        await configured.reload("configuration reloaded")
        error = await waiter.error()
        assert error.code() is grpc.StatusCode.NOT_FOUND
        for answer in held:
            await answer.tokens(len(answer.output.ids) + 2)


async def test_reloads_one_after_the_other_leave_the_last_file_in_force(configured: Configured) -> None:
    client = Client(configured.server.address)
    for turn in range(20):
        configured.write(**({"a": "prod", "b": ""} if turn % 2 else {"a": "", "b": "prod"}))
        configured.server.signal(signal.SIGHUP)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        while (await client.answer("prod", 1)).started.model.name != "a":  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert (await client.model("prod")).name == "a"
    await client.close()
