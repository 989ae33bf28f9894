"""The server of the fault suite: real engines behind real sockets, two models of three fit, everything is measured."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support import tiny_llama
from support.contention import serving_with_faults
from support.servers import ServerProcess, write_config
from support.wholeness import Witness

MANAGER = {"request_overrides": ["fail", "wait", "preempt"], "step_timeout_s": 20}
KEEPALIVE_SECONDS = 1.0


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three tiny models whose context is never full."""
    root = tmp_path_factory.mktemp("folders")
    names = ("one", "two", "slow-load")
    return {name: tiny_llama.build(root / name, seed=i, context_length=100_000) for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[ServerProcess]:
    """Room for two models of 1 GiB; `slow-load` takes a third of a second more to load."""
    facts = {"estimated_memory_gb": 1, "defaults": {"max_tokens": 8}}
    models = [{"name": name, "path": path, **facts} for name, path in folders.items()]
    config = write_config(
        tmp_path_factory.mktemp("server"), models, budget_gb=2.5, manager=MANAGER, metrics={"listen": "127.0.0.1:0"}
    )
    environ = {
        "INFERD_TEST_LOAD_SECONDS": "0.3",
        "INFERD_TEST_STEP_SECONDS": "0.002",
        "INFERD_TEST_KEEPALIVE_SECONDS": str(KEEPALIVE_SECONDS),
    }
    with serving_with_faults(config, **environ) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def witness(server: ServerProcess) -> AsyncIterator[Witness]:
    """The server as it was; at the end of the test it must be whole."""
    witness = await Witness.of(server, "one", "two")
    yield witness
    await witness.check()
