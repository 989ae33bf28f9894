"""The tokenizers of all models: one load for all who wait, nothing remembered of a failure, a bounded number kept."""

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from inferd_server.core.errors import InferdError, Reason, model_corrupt
from inferd_server.core.model import EngineSettings, ModelEntry
from inferd_server.text.texts import Texts
from inferd_server.text.tokenizer import Tokenizer


def entry(name: str = "m", path: Path = Path("/models/m"), revision: str = "") -> ModelEntry:
    return ModelEntry(name, EngineSettings(name, path), revision=revision)


class Loads:
    """A loader under the test's control: each load waits until it is released."""

    def __init__(self, tokenizer: Tokenizer, *, released: bool = True) -> None:
        self.names: list[str] = []
        self.failures: list[InferdError] = []
        self.release = threading.Event()
        self.failed = threading.Event()
        self._tokenizer = tokenizer
        if released:
            self.release.set()

    def __call__(self, entry: ModelEntry) -> Tokenizer:
        self.names.append(entry.name)
        assert self.release.wait(10)
        if self.failures:
            self.failed.set()
            raise self.failures.pop()
        return self._tokenizer


@pytest.fixture(scope="module")
def tokenizer(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(folders["byte-level"])


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_entry_is_loaded_from_its_folder(folders: dict[str, Path]) -> None:
    texts = Texts()
    loaded = await texts.get(entry(path=folders["byte-level"]))
    assert loaded.name == "m"
    assert await texts.get(entry(path=folders["byte-level"])) is loaded


async def test_a_broken_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InferdError) as caught:
        await Texts().get(entry(path=tmp_path))
    assert caught.value.reason is Reason.MODEL_UNSUPPORTED


async def test_all_who_wait_share_one_load(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer, released=False)
    texts = Texts(load=loads)
    waiting = [asyncio.create_task(texts.get(entry())) for _ in range(5)]
    await settled()
    loads.release.set()
    assert await asyncio.gather(*waiting) == [tokenizer] * 5
    assert loads.names == ["m"]


async def test_one_who_leaves_disturbs_nobody(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer, released=False)
    texts = Texts(load=loads)
    leaving, staying = (asyncio.create_task(texts.get(entry())) for _ in range(2))
    await settled()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    loads.release.set()
    assert await staying is tokenizer
    assert loads.names == ["m"]


async def test_a_load_that_everybody_left_is_kept(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer, released=False)
    texts = Texts(load=loads)
    leaving = asyncio.create_task(texts.get(entry()))
    await settled()
    leaving.cancel()
    await settled()
    loads.release.set()
    assert await texts.get(entry()) is tokenizer
    assert loads.names == ["m"]


async def test_a_failure_reaches_all_who_wait_and_is_not_remembered(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer, released=False)
    loads.failures = [model_corrupt("m", "tokenizer.json", "broken")]
    texts = Texts(load=loads)
    waiting = [asyncio.create_task(texts.get(entry())) for _ in range(3)]
    await settled()
    loads.release.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [r.reason for r in results if isinstance(r, InferdError)] == [Reason.MODEL_CORRUPT] * 3
    assert await texts.get(entry()) is tokenizer


async def test_a_failure_that_nobody_waits_for_is_silent(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer, released=False)
    loads.failures = [model_corrupt("m", "tokenizer.json", "broken")]
    texts = Texts(load=loads)
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    leaving = asyncio.create_task(texts.get(entry()))
    await settled()
    leaving.cancel()
    loads.release.set()
    assert await asyncio.to_thread(loads.failed.wait, 10)
    texts.forget("m")
    assert await texts.get(entry()) is tokenizer
    gc.collect()
    assert problems == []


async def test_only_the_most_recently_used_are_kept(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer)
    texts = Texts(max_kept=2, load=loads)
    for name in ("a", "b", "a", "c", "a", "b"):
        await texts.get(entry(name))
    assert loads.names == ["a", "b", "c", "b"]


async def test_another_revision_or_folder_is_another_tokenizer(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer)
    texts = Texts(load=loads)
    for wanted in (entry(), entry(revision="2"), entry(path=Path("/other")), entry()):
        await texts.get(wanted)
    assert loads.names == ["m"] * 3


async def test_a_forgotten_model_is_loaded_again(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer)
    texts = Texts(load=loads)
    await texts.get(entry())
    await texts.get(entry("other"))
    texts.forget("m")
    await texts.get(entry())
    await texts.get(entry("other"))
    assert loads.names == ["m", "other", "m"]


async def test_a_load_forgotten_on_its_way_answers_but_is_not_kept(tokenizer: Tokenizer) -> None:
    loads = Loads(tokenizer, released=False)
    texts = Texts(load=loads)
    waiting = asyncio.create_task(texts.get(entry()))
    await settled()
    texts.forget("m")
    loads.release.set()
    assert await waiting is tokenizer
    await texts.get(entry())
    assert loads.names == ["m", "m"]
