"""One server for the tests that leave it as they found it; the others start their own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support import tiny_llama
from support.calls import Peer
from support.servers import ServerProcess, serving, write_config

ENDLESS_CONTEXT = 1_000_000


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose context is never full."""
    return tiny_llama.build(tmp_path_factory.mktemp("models") / "endless", context_length=ENDLESS_CONTEXT)


@pytest.fixture(scope="session")
def main_server(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, endless_model: Path
) -> Iterator[ServerProcess]:
    """Serves `tiny`, `endless`, `serial` (one at a time), `plain` (no chat template) and `short` (64 tokens)."""
    folder = tmp_path_factory.mktemp("main")
    plain = tiny_llama.build(folder / "plain", chat_template=None)
    template = "{{- mood or '' -}}" + tiny_llama.CHAT_TEMPLATE
    short = tiny_llama.build(folder / "short", context_length=64, chat_template=template)
    models = [
        {"name": "tiny", "path": tiny_model, "aliases": ["small", "chat-small"], "preload": True},
        {"name": "endless", "path": endless_model, "preload": True, "revision": "2026-11-01"},
        {"name": "serial", "path": endless_model, "preload": True, "continuous_batching": False, "max_queue": 4},
        {"name": "plain", "path": plain},
        {"name": "short", "path": short, "preload": True, "defaults": {"temperature": 0.0, "max_tokens": 7}},
    ]
    config = write_config(folder, models, budget_gb=1, server={"drain_timeout_s": 1})
    with serving(config) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
async def peer(main_server: ServerProcess) -> AsyncIterator[Peer]:
    """A connection to the main server; afterwards nothing may run or wait on it."""
    async with Peer(main_server.address) as connection:
        yield connection
    async with Peer(main_server.address) as connection:
        for name in ("tiny", "endless", "serial", "plain", "short"):
            await connection.wait_until_idle(name)


@pytest.fixture
async def neighbour(main_server: ServerProcess) -> AsyncIterator[Peer]:
    """Another connection to the same server."""
    async with Peer(main_server.address) as connection:
        yield connection
