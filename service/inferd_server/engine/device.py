"""The device that MLX computes on, and its memory. Figures are process-wide."""

import ctypes
import gc
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

MAX_BUFFER_CACHE_NBYTES = 1 << 30
"""Freed buffers that MLX keeps for reuse on Metal, where its own default is nearly all memory."""

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says how much memory this container may use (version 2, then 1)."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """`working_set_nbytes` is what the device recommends to use at most, 0 where it does not say (the CPU backend)."""

    device: str
    mlx_version: str
    working_set_nbytes: int
    active_nbytes: int


def report() -> DeviceReport:
    """The device, now."""
    info = mx.device_info()
    return DeviceReport(
        device=str(info.get("device_name", "unknown")),
        mlx_version=version("mlx"),
        working_set_nbytes=int(info.get("max_recommended_working_set_size", 0)),
        active_nbytes=active_nbytes(),
    )


def active_nbytes() -> int:
    """Bytes of all live arrays."""
    return int(mx.get_active_memory())


@cache
def bound_buffer_cache() -> None:
    """Bound the cache of freed buffers, once for the process. The CPU backend's own bound (32 MiB) is left as it is.

    The wired limit is left alone too: nothing here needs it, and large ones were reported to panic the kernel.
    """
    if mx.device_info().get("max_recommended_working_set_size"):
        mx.set_cache_limit(MAX_BUFFER_CACHE_NBYTES)


def machine_nbytes(cgroup_limits: Sequence[Path] = CGROUP_LIMITS) -> int:
    """Memory that the process may use at most: the machine's, or its container's limit where that is lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in cgroup_limits:
        with suppress(OSError, ValueError):  # no such file; or "max": no limit
            limits.append(int(path.read_text()))
    return min(limits)


def release_unused() -> None:
    """Give back what nothing refers to: Python's cycles, MLX's buffer cache, the allocator's free pages.

    Every layer draws initial values that are never computed, and each draw hangs on the thread's random state (34 KB
    for a tiny model): computing it lets go of them.
    """
    gc.collect()
    mx.eval(mx.random.state)
    mx.clear_cache()
    _trim_heap()


def end_thread() -> None:
    """The last call on a thread that used MLX; without it the process may abort at its exit."""
    mx.synchronize()
    mx.clear_streams()


def start(*arrays: object) -> None:
    """Have lazy arrays (or lists of them) computed in the background."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]  # MLX's stubs leave it out


def _trim_heap() -> None:
    """glibc keeps freed pages in its arenas (measured: 4 GB after 20 swaps of models); others have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
