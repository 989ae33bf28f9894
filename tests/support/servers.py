"""A real server in a process of its own, for tests over a real socket."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

START_SECONDS = 60


class ServerProcess:
    """`inferd serve` as a child process.

    With `stderr` (an open file) its standard error goes there, and `log` stays empty.

    Attributes:
        address: HOST:PORT or unix:PATH, as the server announced it.
        log: the lines of its standard error so far.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        program: Sequence[str] = ("-m", "inferd_server"),
        stderr: int = subprocess.PIPE,
        **environ: str,
    ):
        self.log: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
        )
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.address = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")

    def _read_log(self) -> None:
        for line in self._process.stderr or ():
            self.log.append(line.rstrip("\n"))

    def wait_until_listening(self, seconds: float = START_SECONDS) -> str:
        """The address that it announces; fails after `seconds`, or when it ends."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no 'listening on' line; log: {self.log}") from None
            if line.startswith("listening on "):
                self.address = line.removeprefix("listening on ")
                return self.address
            if line == "":  # its end
                self._process.wait(START_SECONDS)
                time.sleep(0.1)
                raise AssertionError(f"the server ended with {self._process.returncode}; log: {self.log}")

    def wait_until_ready(self) -> None:
        """Until every preload is LOADED or FAILED."""
        self.wait_for_log("] ready ")

    def wait_for_log(self, text: str, seconds: float = START_SECONDS, *, since: int = 0) -> str:
        """The first line of the log, of those from `since` on, that holds `text`."""
        deadline = time.monotonic() + seconds
        while True:
            found = next((line for line in list(self.log)[since:] if text in line), None)
            if found is not None:
                return found
            assert self._process.poll() is None, f"the server ended; log: {self.log}"
            assert time.monotonic() < deadline, f"{text!r} was not logged: {self.log}"
            time.sleep(0.01)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    @property
    def rss_nbytes(self) -> int:
        """Resident memory of the process now."""
        return psutil.Process(self.pid).memory_info().rss

    def wait(self, timeout: float = 60) -> int:
        """The exit code; the log is complete afterwards."""
        code = self._process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout=5)
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def write_config(
    folder: Path,
    models: Sequence[dict[str, Any]],
    *,
    budget_gb: float,
    server: dict[str, Any] | None = None,
    manager: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    **sections: dict[str, Any],
) -> Path:
    """A configuration file with short times; `models` are entries as in the file, `sections` further sections."""
    config = {
        "server": {"listen": "127.0.0.1:0", "drain_delay_s": 0, "drain_timeout_s": 5, **(server or {})},
        "manager": {"memory_budget_gb": budget_gb, "min_residency_s": 0, **(manager or {})},
        "metrics": metrics,
        **sections,
        "models": [
            {key: str(value) if isinstance(value, Path) else value for key, value in model.items()} for model in models
        ],
    }
    path = folder / "inferd.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def serving(
    config: Path, *, program: Sequence[str] = ("-m", "inferd_server"), flags: Sequence[str] = (), **environ: str
) -> Iterator[ServerProcess]:
    """A server on this configuration, listening; stopped at the end."""
    server = ServerProcess(["serve", "--config", str(config), *flags], program=program, **environ)
    try:
        server.wait_until_listening()
        yield server
    finally:
        server.close()
