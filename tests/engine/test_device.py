"""The device's limits, the process's memory, and wakefulness: on this machine, and on a Mac that is a fake."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import psutil
import pytest

from fakes import mac
from fakes.mac import GIB, Metal
from inferd_server.engine import awake, device
from inferd_server.engine.awake import kept_awake
from inferd_server.engine.device import MAX_BUFFER_CACHE_NBYTES, MemoryLimits


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Metal]:
    """Puts a Mac in the place of the device."""

    def metal(**given: object) -> Metal:
        fake = Metal(**given)  # type: ignore[arg-type]
        monkeypatch.setattr(device, "mx", fake)
        return fake

    return metal


def test_all_limits_follow_from_the_ceiling(metal: Callable[..., Metal]) -> None:
    fake = metal()
    limits = device.set_limits(76 * GIB)
    assert limits == MemoryLimits(76 * GIB, 76 * GIB, MAX_BUFFER_CACHE_NBYTES)
    assert sorted(fake.limits) == [
        ("cache", MAX_BUFFER_CACHE_NBYTES),
        ("memory", 76 * GIB),
        ("wired", 76 * GIB),
    ]


def test_a_small_device_keeps_fewer_freed_buffers(metal: Callable[..., Metal]) -> None:
    metal(working_set_nbytes=5 * GIB)
    limits = device.set_limits(4 * GIB)
    assert limits is not None
    assert limits.cache_nbytes == GIB // 2


def test_without_a_ceiling_only_freed_buffers_are_bounded(metal: Callable[..., Metal]) -> None:
    fake = metal()
    assert device.set_limits(0) == MemoryLimits(0, 0, MAX_BUFFER_CACHE_NBYTES)
    assert fake.limits == [("cache", MAX_BUFFER_CACHE_NBYTES)]


@pytest.mark.parametrize("error", [ValueError("larger than the system's"), RuntimeError("not on this macOS")])
def test_a_wired_limit_that_the_system_refuses_is_a_warning(
    metal: Callable[..., Metal], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    metal(wired_error=error)
    assert device.set_limits(76 * GIB) == MemoryLimits(76 * GIB, 0, MAX_BUFFER_CACHE_NBYTES)
    assert str(error) in caplog.text


def test_a_device_without_a_working_set_keeps_its_limits() -> None:
    before = mx.set_cache_limit(1 << 25)
    try:
        assert device.set_limits(0) is None
        assert mx.set_cache_limit(1 << 25) == 1 << 25
    finally:
        mx.set_cache_limit(before)


def test_the_process_is_as_large_as_linux_says() -> None:
    measured = psutil.Process().memory_info().rss
    assert measured / 2 < device.process_nbytes() < measured * 2


def test_on_a_mac_the_process_is_as_large_as_its_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.sys, "platform", "darwin")
    monkeypatch.setattr(device, "_libproc", lambda: mac.libproc(7 * GIB + 1))
    assert device.process_nbytes() == 7 * GIB + 1
    monkeypatch.setattr(device, "_libproc", lambda: mac.libproc(7 * GIB, code=-1))
    assert device.process_nbytes() == 0
    assert ctypes.sizeof(device._ResourceUsage) == 16 + 10 * 8


# --- wakefulness --------------------------------------------------------------------------------------------------


def test_a_child_holds_the_system_awake_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = mac.program(tmp_path, "caffeinate", "exec sleep 600")
    monkeypatch.setattr(awake, "CAFFEINATE", str(program))
    before = set(psutil.Process().children())  # of other tests
    with kept_awake():
        [child] = set(psutil.Process().children()) - before
        assert child.is_running()
    assert not child.is_running()


def test_the_child_watches_this_very_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "CAFFEINATE", str(mac.program(tmp_path, "caffeinate")))
    before = set(psutil.Process().children())
    with kept_awake():
        psutil.wait_procs(set(psutil.Process().children()) - before, timeout=20)
    assert mac.calls(tmp_path, "caffeinate") == [f"-i -w {os.getpid()}"]


def test_without_the_program_the_error_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "CAFFEINATE", str(tmp_path / "none"))
    with pytest.raises(OSError, match=r"server\.prevent_sleep: .*none: No such file"), kept_awake():
        pass
