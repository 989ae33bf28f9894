"""What a Mac has and this machine lacks: Metal's side of MLX, libproc, and programs that note how they were called."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 2**30


class Metal:
    """Stands in for `mlx.core` on a Mac with this working set: notes every limit that is set, in order."""

    def __init__(self, working_set_nbytes: int = 96 * GIB, wired_error: Exception | None = None) -> None:
        self.limits: list[tuple[str, int]] = []
        self._working_set_nbytes = working_set_nbytes
        self._wired_error = wired_error

    def device_info(self) -> dict[str, Any]:
        return {
            "device_name": "Apple M4 Max",
            "max_recommended_working_set_size": self._working_set_nbytes,
            "memory_size": 128 * GIB,
        }

    def get_active_memory(self) -> int:
        return 0

    def set_memory_limit(self, nbytes: int) -> int:
        self.limits.append(("memory", nbytes))
        return 0

    def set_cache_limit(self, nbytes: int) -> int:
        self.limits.append(("cache", nbytes))
        return 0

    def set_wired_limit(self, nbytes: int) -> int:
        if self._wired_error is not None:
            raise self._wired_error
        if nbytes > self._working_set_nbytes:
            raise ValueError("[metal::set_wired_limit] Setting a wired limit larger than the maximum working set size")
        self.limits.append(("wired", nbytes))
        return 0


def libproc(footprint_nbytes: int, code: int = 0) -> Any:
    """libproc.dylib of a process with this footprint; `code` other than 0 is an error.

    Its layout is written down here again, as in <sys/resource.h>: 16 bytes, then ten numbers; the eighth is meant.
    """

    def proc_pid_rusage(pid: int, flavor: int, buffer: Any) -> int:
        assert flavor == 0
        numbers = (ctypes.c_uint64 * 10)(*range(1, 8), footprint_nbytes, 9, 10)
        ctypes.memmove(ctypes.addressof(buffer._obj) + 16, numbers, ctypes.sizeof(numbers))
        return code

    return SimpleNamespace(proc_pid_rusage=proc_pid_rusage)


def program(folder: Path, name: str, body: str = "") -> Path:
    """An executable of this name that adds a line with its arguments to `NAME.calls`, then runs `body` (sh)."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" >> "{folder / name}.calls"\n{body}\n')
    path.chmod(0o755)
    return path


def calls(folder: Path, name: str) -> list[str]:
    """How the program was called, oldest first."""
    file = folder / f"{name}.calls"
    return file.read_text().splitlines() if file.exists() else []
