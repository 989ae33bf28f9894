"""SIGHUP: the models of a changed file are applied as one transaction, while the server serves."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferd_client import AsyncClient, Client, ModelNotFound
from support import tiny_llama
from support.servers import ServerProcess, serving, write_config


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: tiny_llama.build(root / name, seed=seed) for seed, name in enumerate(("old", "new"))}


@pytest.fixture
def config(tmp_path: Path, folders: dict[str, Path]) -> Path:
    models = [{"name": "old", "path": folders["old"], "aliases": ["chat"]}, {"name": "new", "path": folders["new"]}]
    return write_config(tmp_path, models, budget_gb=0.1)


@pytest.fixture
def server(config: Path) -> Iterator[ServerProcess]:
    with serving(config) as running:
        yield running


HANGUP_WHILE_STARTING = """
import os, signal
from inferd_server import __main__ as program

load = program._load

def load_and_hang_up(*arguments, **options):
    loaded = load(*arguments, **options)
    os.kill(os.getpid(), signal.SIGHUP)
    return loaded

program._load = load_and_hang_up
program.commands(prog_name="inferd")
"""


def test_a_reload_asked_for_while_the_server_starts_is_done_once_it_listens(config: Path) -> None:
    with serving(config, program=("-c", HANGUP_WHILE_STARTING)) as server:
        server.wait_for_log("configuration reloaded")
        with Client(server.address) as client:
            assert client.generate("old", "hi", max_tokens=1).text is not None


def change(config: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = yaml.safe_load(config.read_text())
    edit(document)
    config.write_text(yaml.safe_dump(document))


def reload(server: ServerProcess, expected: str) -> None:
    """Ask for a reload and wait until the log says how it ended."""
    seen = len(server.log)
    server.signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while not any(expected in line for line in server.log[seen:]):
        assert time.monotonic() < deadline, server.log[seen:]
        time.sleep(0.02)


def point_chat_to_new(document: dict[str, Any]) -> None:
    document["models"][0]["aliases"] = []
    document["models"][1]["aliases"] = ["chat"]


async def test_an_alias_moves_to_another_model_without_a_failed_request(server: ServerProcess, config: Path) -> None:
    served: list[str] = []
    done = asyncio.Event()

    async def traffic(client: AsyncClient) -> None:
        while not done.is_set():
            answer = await client.generate("chat", prompt="x", max_tokens=4, temperature=0)
            served.append(answer.model.name)

    async with AsyncClient(server.address) as client:
        tasks = [asyncio.create_task(traffic(client)) for _ in range(3)]
        await asyncio.sleep(0.5)
        change(config, point_chat_to_new)
        await asyncio.to_thread(reload, server, "configuration reloaded")
        asked = len(served) + len(tasks)
        while len(served) < asked + 3:
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
        done.set()
        await asyncio.gather(*tasks)
    assert served[0] == "old"
    assert set(served[asked:]) == {"new"}


def test_a_removed_model_finishes_its_streams_and_is_gone(server: ServerProcess, config: Path) -> None:
    with Client(server.address) as client:
        with client.stream("old", prompt="x", max_tokens=400, temperature=0, ignore_eos=True) as stream:
            pieces = iter(stream.text())
            next(pieces)
            change(config, lambda document: document["models"].pop(0))
            reload(server, "configuration reloaded")
            with pytest.raises(ModelNotFound):
                client.generate("old", prompt="x", max_tokens=1)
            for _ in pieces:
                pass
            assert stream.result.usage.completion_tokens == 400
        deadline = time.monotonic() + 10
        while [model.name for model in client.models().models] != ["new"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


BAD_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "models[2]": lambda document: document["models"].append({"name": "old", "path": "/nowhere"}),
    "server.max_queue": lambda document: document["server"].update(max_queue=3),
    "manager.memory_budget_gb": lambda document: document["manager"].update(memory_budget_gb=0.2),
}


def test_a_bad_file_changes_nothing_and_the_log_names_the_key(server: ServerProcess, config: Path) -> None:
    good = config.read_text()
    for named, edit in BAD_EDITS.items():
        config.write_text(good)
        change(config, edit)
        change(config, point_chat_to_new)
        reload(server, "configuration refused; nothing changed")
        assert any(named in line for line in server.log)
        with Client(server.address) as client:
            assert client.generate("chat", prompt="x", max_tokens=1).model.name == "old"


def test_a_new_preload_is_loaded(server: ServerProcess, config: Path, folders: dict[str, Path]) -> None:
    change(
        config,
        lambda document: document["models"].append({"name": "third", "path": str(folders["new"]), "preload": True}),
    )
    reload(server, "configuration reloaded")
    with Client(server.address) as client:
        deadline = time.monotonic() + 20
        while client.model("third").state != "loaded":
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def test_requests_that_wait_follow_an_alias_whose_old_model_is_removed(tmp_path: Path) -> None:
    """The natural way to roll a version out: one file takes the old entry away and points the alias to the new one."""
    old = tiny_llama.build(tmp_path / "old", seed=0)
    new = tiny_llama.build(tmp_path / "new", seed=1)
    models = [
        {"name": "busy", "path": old},
        {"name": "old", "path": old, "aliases": ["chat"]},
        {"name": "new", "path": new},
    ]
    sizes = {"estimated_memory_gb": 0.06}
    config = write_config(
        tmp_path,
        [{**model, **sizes} for model in models],
        budget_gb=0.1,
        manager={"contention_policy": {"strategy": "wait"}, "drain_busy_after_s": 0},
    )
    with serving(config) as server:
        async with AsyncClient(server.address) as client:
            async with client.stream("busy", prompt="x", max_tokens=3000, temperature=0, ignore_eos=True) as stream:
                await anext(stream.text())
                waiting = asyncio.create_task(client.generate("chat", prompt="x", max_tokens=4, temperature=0))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                change(config, lambda document: document["models"].pop(1))
                change(config, lambda document: document["models"][1].update(aliases=["chat"]))
                await asyncio.to_thread(reload, server, "configuration reloaded")
            assert (await asyncio.wait_for(waiting, 20)).model.name == "new"


def test_a_loaded_model_is_served_with_the_files_it_was_loaded_from(tmp_path: Path) -> None:
    """Its entry points elsewhere already: tokens, vocabulary, name and revision stay those of what is loaded."""
    small = tiny_llama.build(tmp_path / "small", seed=0, context_length=512)
    large = tiny_llama.build(tmp_path / "large", seed=1, context_length=4096)
    config = write_config(tmp_path, [{"name": "m", "path": small, "revision": "v1"}], budget_gb=0.1)

    def switch(document: dict[str, Any]) -> None:
        document["models"][0].update(path=str(large), revision="v2")

    with serving(config) as server, Client(server.address) as client:
        first = client.generate("m", prompt="x", max_tokens=8, temperature=0)
        change(config, switch)
        reload(server, "configuration reloaded")
        still = client.generate("m", prompt="x", max_tokens=8, temperature=0)
        assert (still.model.revision, still.text) == ("v1", first.text)
        client.load("m", reload=True)
        after = client.generate("m", prompt="x", max_tokens=8, temperature=0)
        assert after.model.revision == "v2"
        assert after.text != first.text


def test_weights_replaced_in_place_get_a_revision_of_their_own_at_the_next_load(tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "m", seed=0)
    config = write_config(tmp_path, [{"name": "m", "path": folder}], budget_gb=0.1)
    with serving(config) as server, Client(server.address) as client:
        first = client.generate("m", prompt="x", max_tokens=8, temperature=0)
        tiny_llama.build(folder, seed=1, layers=3, context_length=1024)
        assert client.generate("m", prompt="x", max_tokens=8, temperature=0).text == first.text
        client.load("m", reload=True)
        after = client.generate("m", prompt="x", max_tokens=8, temperature=0)
        assert (after.model.revision != first.model.revision, after.text != first.text) == (True, True)
        assert client.model("m").context_length == 1024
