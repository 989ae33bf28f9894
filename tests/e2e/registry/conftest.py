"""Servers whose models contend: each model is stated as 1 GiB (`small`: 0.25), so a budget says how many fit."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import tiny_llama
from support.contention import Client, connected, serving_with_faults
from support.servers import ServerProcess, write_config

ALL_STRATEGIES = ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
SEEDS = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
STEP_SECONDS = "0.004"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Five tiny models of different weights, by name."""
    folder = tmp_path_factory.mktemp("contenders")
    return {name: tiny_llama.build(folder / name, seed=seed) for name, seed in SEEDS.items()}


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator["StartServer"]:
    """Starts servers that live as long as the session."""
    with ExitStack() as stack:
        yield StartServer(tmp_path_factory, folders, stack)


class StartServer:
    """Starts a server over `a`, `b`, `c` (1 GiB each) and more entries, with room for `budget_gb`."""

    def __init__(self, factory: pytest.TempPathFactory, folders: dict[str, Path], stack: ExitStack) -> None:
        self._factory = factory
        self._folders = folders
        self._stack = stack

    def entries(self, *names: str, **more: object) -> list[dict[str, object]]:
        """Entries of 1 GiB."""
        return [{"name": name, "path": self._folders[name], "estimated_memory_gb": 1, **more} for name in names]

    def __call__(
        self,
        *,
        budget_gb: float = 1.5,
        models: list[dict[str, object]] | None = None,
        more: list[dict[str, object]] | None = None,
        manager: dict[str, object] | None = None,
        server: dict[str, object] | None = None,
        stack: ExitStack | None = None,
        **environ: str,
    ) -> ServerProcess:
        config = write_config(
            self._factory.mktemp("server"),
            [*(models or self.entries("a", "b", "c")), *(more or [])],
            budget_gb=budget_gb,
            server=server,
            manager={"drain_busy_after_s": 0, "request_overrides": ALL_STRATEGIES, **(manager or {})},
        )
        environ = {"INFERD_TEST_STEP_SECONDS": STEP_SECONDS, **environ}
        return (stack or self._stack).enter_context(serving_with_faults(config, **environ))


@pytest.fixture(scope="session")
def one_place(start_server: StartServer, folders: dict[str, Path]) -> ServerProcess:
    """Room for one model of `a`, `b`, `c` and `slow-load-x`, plus `small` (0.25); fairness by draining is off."""
    more = [
        {"name": "slow-load-x", "path": folders["d"], "estimated_memory_gb": 1, "aliases": ["slow"]},
        {"name": "small", "path": folders["e"], "estimated_memory_gb": 0.25, "revision": "r7"},
    ]
    return start_server(more=more, INFERD_TEST_LOAD_SECONDS="0.6")


@pytest.fixture(scope="session")
def two_places(start_server: StartServer) -> ServerProcess:
    """Room for two models of `a`, `b` and `c`; fairness by draining is off."""
    return start_server(budget_gb=2.5)


@pytest.fixture
async def client(one_place: ServerProcess) -> AsyncIterator[Client]:
    """A client of `one_place`; nothing is left behind, and the ledger is exact all along."""
    async with connected(one_place) as client:
        yield client


@pytest.fixture
async def other(one_place: ServerProcess) -> AsyncIterator[Client]:
    """Another client of `one_place`."""
    client = Client(one_place.address)
    yield client
    await client.close()
