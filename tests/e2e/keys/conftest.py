"""One server with keys for all tests here; each changes or uses up keys that no other test uses."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest

from support import tiny_embedder, tiny_llama
from support.calls import Peer
from support.keys import Keys
from support.servers import ServerProcess, serving, write_config


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    everything = ["generate", "observe", "admin"]
    return Keys(
        tmp_path_factory.mktemp("keys") / "keys.yaml",
        root={"methods": everything},
        team={"models": ["open-*"]},
        twin={"models": ["open-*"]},
        alias={"models": ["chat"]},
        loader={"models": ["open-*"], "methods": ["admin"]},
        looker={"methods": ["observe"]},
        meek={"strategies": ["fail"], "max_priority": 0},
        watcher={"methods": ["observe"]},
        streamer={},
        changing={"models": ["open-*"]},
        off={"disabled": True},
        old={"expires": datetime(2026, 1, 1, tzinfo=UTC)},
        vectors={"models": ["vec-*"], "tokens_per_minute": 30, "max_prompt_tokens": 40},
        rpm={"requests_per_minute": 3},
        tpm={"tokens_per_minute": 60},
        one={"max_concurrent": 1},
        short={"max_prompt_tokens": 8, "max_output_tokens": 5},
        glancer={"max_images": 1, "max_image_mib": 1, "max_image_pixels": 100},
        young={"expires": datetime(2099, 1, 1, tzinfo=UTC)},
    )


@pytest.fixture(scope="session")
def server(keys: Keys) -> Iterator[ServerProcess]:
    """Serves `open-a` (alias `chat`), `open-b` and `secret-c` (alias `hidden`), of which two fit, and `vec-e`, an
    embedder."""
    folder = keys.path.parent
    aliases = {"open-a": ["chat"], "open-b": [], "secret-c": ["hidden"]}
    models = [
        {
            "name": name,
            "path": tiny_llama.build(folder / name, seed=seed, context_length=100_000),
            "estimated_memory_gb": 1,
            "aliases": aliases[name],
        }
        for seed, name in enumerate(aliases)
    ]
    embedder = tiny_embedder.build(folder / "vec-e")
    models.append({"name": "vec-e", "path": embedder, "estimated_memory_gb": 0.1})
    config = write_config(
        folder,
        models,
        budget_gb=2.5,
        server={"drain_timeout_s": 1},
        metrics={"listen": "127.0.0.1:0"},
        auth={"keys_file": str(keys.path)},
        logging={"level": "debug", "format": "json"},
    )
    with serving(config) as process:
        process.wait_for_log('"event": "ready"')
        yield process


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as connection:
        yield connection
