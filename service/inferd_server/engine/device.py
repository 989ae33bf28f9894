"""The device that MLX computes on, and its memory. Figures are process-wide."""

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

log = logging.getLogger("inferd.engine")

MAX_BUFFER_CACHE_NBYTES = 1 << 30
"""Freed buffers that MLX keeps for reuse on Metal, where its own default is nearly all memory."""

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says how much memory this container may use (version 2, then 1)."""


FUSED_HEAD_WIDTHS = (64, 80, 96, 128) if mx.metal.is_available() else ()
"""Of heads whose attention holds no scores in memory; those of long prompts are counted whatever the width."""


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


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What MLX was told, bytes; `wired_nbytes` 0: its own.

    Attributes:
        memory_nbytes: from here on allocations wait for running work and give back freed buffers; none is refused.
        wired_nbytes: kept resident, so that the system pages none of it out.
        cache_nbytes: freed buffers kept for reuse.
    """

    memory_nbytes: int
    wired_nbytes: int
    cache_nbytes: int


def set_limits(ceiling_nbytes: int) -> MemoryLimits | None:
    """Bound what MLX allocates, wires and keeps, for the whole process: once, before any model is loaded, since the
    wired limit must not change while work runs. None where the device reports no working set (the CPU backend): its
    own limits are left as they are.

    Args:
        ceiling_nbytes: the allocation ceiling, at most the recommended working set (a larger wired limit is an error,
            and was reported to panic the kernel); 0: none, then only freed buffers are bounded.
    """
    if not report().working_set_nbytes:
        return None
    cache_nbytes = min(MAX_BUFFER_CACHE_NBYTES, ceiling_nbytes // 8 or MAX_BUFFER_CACHE_NBYTES)
    mx.set_cache_limit(cache_nbytes)
    if not ceiling_nbytes:
        return MemoryLimits(0, 0, cache_nbytes)
    mx.set_memory_limit(ceiling_nbytes)
    return MemoryLimits(ceiling_nbytes, ceiling_nbytes if _wire(ceiling_nbytes) else 0, cache_nbytes)


def _wire(nbytes: int) -> bool:
    try:
        mx.set_wired_limit(nbytes)
    except (ValueError, RuntimeError) as error:  # an administrator may have lowered the system's own limit
        log.warning("the wired limit stays as it is: %s", error)
        return False
    return True


def process_nbytes() -> int:
    """Memory of this process as the system counts it, which is what it kills for: the physical footprint on macOS
    (compressed and wired pages included), resident pages on Linux; 0 where neither can be read. Blocking (a call)."""
    return _macos_footprint() if sys.platform == "darwin" else _linux_resident()


class _ResourceUsage(ctypes.Structure):
    """rusage_info_v0 of <sys/resource.h>."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "user_time",
                "system_time",
                "package_idle_wakeups",
                "interrupt_wakeups",
                "page_ins",
                "wired_size",
                "resident_size",
                "physical_footprint",
                "start_time",
                "exit_time",
            )
        ),
    )


def _macos_footprint() -> int:
    usage = _ResourceUsage()
    failed = _libproc().proc_pid_rusage(os.getpid(), 0, ctypes.byref(usage))
    return 0 if failed else int(usage.physical_footprint)


@cache
def _libproc() -> ctypes.CDLL:
    return ctypes.CDLL("/usr/lib/libproc.dylib")


def _linux_resident() -> int:
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


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
