"""Loading and unloading again and again costs nothing: memory and threads come back."""

import sys
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from support.contention import Client
from support.servers import ServerProcess

WARM_UP = 5
EXECUTOR_THREADS = 6
"""asyncio's own, for file checks: they come one by one and stay."""


async def cycle(server: ServerProcess, client: Client, count: int) -> list[int]:
    """Resident bytes after each load, answer and unload of the tiny model."""
    seen = []
    for _ in range(count):
        await client.answer("a", 5)
        await client.unload("a")
        seen.append(server.rss_nbytes)
    return seen


def slope(values: list[int]) -> float:
    """Bytes a cycle, by least squares."""
    mean_x, mean_y = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((x - mean_x) ** 2 for x in range(len(values)))
    return sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values)) / spread


async def resident_memory_has_no_slope(start_server: Any, cycles: int, most_nbytes: float) -> None:
    with ExitStack() as stack:
        server = start_server(models=start_server.entries("a"), stack=stack, INFERD_TEST_STEP_SECONDS="0")
        client = Client(server.address)
        process = psutil.Process(server.pid)
        await cycle(server, client, WARM_UP)
        threads, files = process.num_threads(), process.num_fds()
        seen = await cycle(server, client, cycles)
        listed = await client.settled()
        print(
            f"{cycles} cycles: {seen[0] / 2**20:.1f} -> {seen[-1] / 2**20:.1f} MiB, most {max(seen) / 2**20:.1f}, "
            f"slope {slope(seen) / 1024:.2f} KiB a cycle",
            file=sys.stderr,
        )
        assert listed.memory.used_bytes == 0
        assert process.num_threads() <= threads + EXECUTOR_THREADS
        assert process.num_fds() <= files + 2
        assert slope(seen) < most_nbytes
        await client.close()


async def test_fifteen_cycles_leave_memory_and_threads_as_they_were(start_server: Any) -> None:
    await resident_memory_has_no_slope(start_server, 15, 256 * 1024)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_hundred_cycles_leave_memory_and_threads_as_they_were(start_server: Any) -> None:
    await resident_memory_has_no_slope(start_server, 100, 8 * 1024)
