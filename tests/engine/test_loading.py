"""Loads that fail, are abandoned or refused; what a folder may hold."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import LoadAbandoned
from inferd_server.engine import device
from inferd_server.engine.checks import check_model_folder
from inferd_server.engine.language import open_language_engine
from support import tiny_llama
from support.engine_room import LoadingFake, Reference, ids, open_engine, request, run, settings

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sharded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.build(tmp_path_factory.mktemp("models") / "sharded", shards=3)


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


@pytest.fixture
def shards(tmp_path: Path, sharded_model: Path) -> Path:
    return Path(shutil.copytree(sharded_model, tmp_path / "copy"))


def change_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({key: each for key, each in value.items() if each is not ...}))


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", **changes)


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_bytes(content))


def void(_: object) -> None:
    return None


def cut(name: str, nbytes: int) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_bytes((folder / name).read_bytes()[:nbytes]))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


UNSUPPORTED, CORRUPT, FAILED = Reason.MODEL_UNSUPPORTED, Reason.MODEL_CORRUPT, Reason.MODEL_LOAD_FAILED

# What is wrong, the reason, the file to blame, and whether the cheap check already sees it.
BROKEN: list[tuple[str, Callable[[Path], None], Reason, str, bool]] = [
    ("no folder", shutil.rmtree, FAILED, "", True),
    ("no config", remove("config.json"), UNSUPPORTED, "", True),
    ("config is no JSON", write("config.json", b"{oops"), CORRUPT, "config.json", True),
    ("config is empty", write("config.json", b""), CORRUPT, "config.json", True),
    ("config is a list", write("config.json", b"[]"), CORRUPT, "config.json", True),
    ("config is nested without end", write("config.json", b"[" * 100_000), CORRUPT, "config.json", True),
    ("config is no UTF-8", write("config.json", b"\xff\xfe{}\x80"), CORRUPT, "config.json", True),
    ("no model_type", config(model_type=...), UNSUPPORTED, "", True),
    ("unknown model_type", config(model_type="nosuch"), UNSUPPORTED, "", True),
    ("model_type is a module without a model", config(model_type="cache"), UNSUPPORTED, "", True),
    ("model_type is a path", config(model_type="../../os"), UNSUPPORTED, "", True),
    ("model_type is a number", config(model_type=3), UNSUPPORTED, "", True),
    ("model_type is dotted", config(model_type="switch_layers.mx"), UNSUPPORTED, "", True),
    ("a size is missing", config(hidden_size=...), FAILED, "", False),
    ("a size has another type", config(hidden_size="many"), FAILED, "", False),
    ("a size is not that of the weights", config(hidden_size=128), FAILED, "", False),
    ("more layers than the weights", config(num_hidden_layers=3), CORRUPT, WEIGHTS, False),
    ("fewer layers than the weights", config(num_hidden_layers=1), FAILED, "", False),
    ("odd quantization", config(quantization={"bits": 4}), FAILED, "", False),
    ("no weights", remove(WEIGHTS), CORRUPT, WEIGHTS, True),
    ("empty weights", write(WEIGHTS, b""), CORRUPT, WEIGHTS, True),
    ("garbage weights", write(WEIGHTS, b"garbage!" * 100), CORRUPT, WEIGHTS, True),
    ("weights cut in the data", cut(WEIGHTS, 100_000), CORRUPT, WEIGHTS, True),
    ("weights cut by one byte", lambda f: cut(WEIGHTS, (f / WEIGHTS).stat().st_size - 1)(f), CORRUPT, WEIGHTS, True),
    ("weights cut in the header", cut(WEIGHTS, 200), CORRUPT, WEIGHTS, True),
    ("header is no JSON", write(WEIGHTS, (8).to_bytes(8, "little") + b"{{{{{{{{"), CORRUPT, WEIGHTS, True),
    ("header is a list", write(WEIGHTS, (8).to_bytes(8, "little") + b"[1,2,3] "), CORRUPT, WEIGHTS, True),
    ("header of odd entries", write(WEIGHTS, (8).to_bytes(8, "little") + b'{"a":{}}'), CORRUPT, WEIGHTS, True),
    ("only GGUF", lambda f: (f / WEIGHTS).rename(f / "model.gguf"), UNSUPPORTED, "", True),
    ("code to run", config(model_file="model.py"), UNSUPPORTED, "", True),
    ("code to map", config(auto_map={"AutoModel": "model.Model"}), UNSUPPORTED, "", True),
]
BROKEN_SHARDS: list[tuple[str, Callable[[Path], None], str]] = [
    ("a shard is missing", remove("model-00002-of-00003.safetensors"), "model-00002-of-00003.safetensors"),
    ("a shard is cut", cut("model-00003-of-00003.safetensors", 9000), "model-00003-of-00003.safetensors"),
    (
        "a shard lacks a tensor",
        lambda f: void(shutil.copy(f / _SHARD[1], f / _SHARD[0])),
        "model-00001-of-00003.safetensors",
    ),
    ("the index is no JSON", write(INDEX, b"{"), INDEX),
    ("the index is a list", write(INDEX, b"[]"), INDEX),
    ("the index names nothing", write(INDEX, b'{"weight_map": {}}'), INDEX),
    ("the index leaves the folder", write(INDEX, b'{"weight_map": {"a": "../x.safetensors"}}'), INDEX),
]
_SHARD = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.mark.parametrize(("harm", "reason", "file", "is_cheap"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_a_broken_folder_fails_with_its_reason_and_leaves_nothing_in_memory(
    folder: Path, harm: Callable[[Path], None], reason: Reason, file: str, is_cheap: bool
) -> None:
    device.release_unused()
    before = device.active_nbytes()
    harm(folder)
    with pytest.raises(InferdError) as failed:
        open_language_engine(settings(folder), LoadingFake())
    assert failed.value.reason == reason, failed.value.message
    assert failed.value.facts.get("file", "") == file
    assert device.active_nbytes() == before
    if is_cheap:
        with pytest.raises(InferdError) as found:
            check_model_folder(settings(folder))
        assert (found.value.reason, found.value.message) == (reason, failed.value.message)
    else:
        check_model_folder(settings(folder))
        assert failed.value.__context__ is None


@pytest.mark.parametrize(("harm", "file"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN_SHARDS])
def test_broken_shards_are_named(shards: Path, harm: Callable[[Path], None], file: str) -> None:
    harm(shards)
    with pytest.raises(InferdError) as failed:
        check_model_folder(settings(shards))
    assert (failed.value.reason, failed.value.facts["file"]) == (CORRUPT, file)


def test_weights_that_the_index_does_not_name_are_left_out(shards: Path, sharded_model: Path) -> None:
    other = tiny_llama.build(shards.parent / "other", seed=5)
    shutil.copy(other / WEIGHTS, shards / "model-old.safetensors")
    [tokens] = run(open_engine(shards), request([9, 8, 7]))
    assert ids(tokens) == Reference(sharded_model).greedy([9, 8, 7])


def test_weights_of_another_name_are_read(folder: Path, tiny_model: Path) -> None:
    (folder / WEIGHTS).rename(folder / "weights.safetensors")
    [tokens] = run(open_engine(folder), request([9, 8, 7]))
    assert ids(tokens) == Reference(tiny_model).greedy([9, 8, 7])


def test_progress_is_told_from_nothing_to_all(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.setattr("inferd_server.engine.loading.PIECE_NBYTES", 64 << 10)
    loading = LoadingFake()
    engine = open_language_engine(settings(tiny_model), loading)
    done = [each for each, _ in loading.reports]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, engine.weights_nbytes)
    assert len(done) > 4
    assert {total for _, total in loading.reports} == {engine.weights_nbytes}
    engine.close()


@pytest.mark.parametrize("reports", [1, 2, 3])
def test_an_abandoned_load_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tiny_model: Path, reports: int) -> None:
    monkeypatch.setattr("inferd_server.engine.loading.PIECE_NBYTES", 64 << 10)
    device.release_unused()
    before = device.active_nbytes()
    loading = LoadingFake(abandon_after=reports)
    with pytest.raises(LoadAbandoned) as abandoned:
        open_language_engine(settings(tiny_model), loading)
    assert len(loading.reports) == reports
    assert device.active_nbytes() == before
    assert abandoned.value.__context__ is None


def test_closing_gives_the_memory_back(tiny_model: Path) -> None:
    device.release_unused()
    before = device.active_nbytes()
    engine = open_engine(tiny_model)
    assert device.active_nbytes() - before >= engine.weights_nbytes > 0
    engine.insert(request([1, 2, 3], 100))
    for _ in range(5):
        engine.step()
    assert engine.cache_nbytes > 0
    engine.close()
    assert device.active_nbytes() == before


MARKER_CODE = "from pathlib import Path\nPath(__file__).with_name('marker').touch()\n"


def test_code_of_a_folder_runs_only_where_it_is_trusted(folder: Path) -> None:
    (folder / "evil.py").write_text(MARKER_CODE + "from mlx_lm.models.llama import Model, ModelArgs\n")
    change_json(folder / "config.json", model_file="evil.py")
    with pytest.raises(InferdError, match="trust_remote_code is not set"):
        open_language_engine(settings(folder), LoadingFake())
    assert not (folder / "marker").exists()
    [tokens] = run(open_engine(folder, trust_remote_code=True), request([9, 8, 7]))
    assert (folder / "marker").exists()
    assert len(tokens) == 16


def test_trusted_code_must_lie_in_the_folder(folder: Path) -> None:
    (folder.parent / "evil.py").write_text(MARKER_CODE)
    change_json(folder / "config.json", model_file="../evil.py")
    with pytest.raises(InferdError, match="must name a file of the folder"):
        open_language_engine(settings(folder, trust_remote_code=True), LoadingFake())
    assert not (folder.parent / "marker").exists()


def test_code_for_the_tokenizer_is_refused_too(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    with pytest.raises(InferdError) as refused:
        check_model_folder(settings(folder))
    assert refused.value.reason == UNSUPPORTED
    check_model_folder(settings(folder, trust_remote_code=True))
