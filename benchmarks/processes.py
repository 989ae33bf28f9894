"""The processes of a benchmark: ones that answer commands, the server, and what each uses."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def preload_openblas() -> str:
    """Let every process started from here on use OpenBLAS where it is installed, and say which BLAS they use.

    The MLX wheel for Linux brings a reference BLAS, with which a real model takes an hour for what follows.
    """
    found = sorted(Path("/usr/lib").glob("*/openblas-pthread/libblas.so.3")) if sys.platform == "linux" else []
    if found and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = str(found[0])
    return "OpenBLAS" if "openblas" in os.environ.get("LD_PRELOAD", "") else "as MLX ships it"


class Child:
    """A benchmark process that answers commands (workload.py)."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to one command; raises if the process died over it."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with code {self.process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=30)


class Usage:
    """What a process and its children use, as the operating system counts it."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)

    def cpu_seconds(self) -> float:
        """User and system time so far, children included."""
        times = [one.cpu_times() for one in (self.process, *self.process.children(recursive=True))]
        return sum(t.user + t.system for t in times)

    def resident_mib(self) -> float:
        """Resident now, children included."""
        return sum(one.memory_info().rss for one in (self.process, *self.process.children(recursive=True))) / 2**20

    def peak_mib(self) -> float:
        """Most memory ever resident (Linux); where the system does not say, what is resident now."""
        status = Path(f"/proc/{self.process.pid}/status")
        if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
            return int(found.group(1)) / 1024
        return self.resident_mib()


@dataclass
class Running:
    """A server that is ready; `exit_code` once it ended."""

    address: str
    pid: int
    exit_code: int | None = None


@contextmanager
def server(command: list[str], log: Path) -> Iterator[Running]:
    """A running server, ended by SIGTERM; by SIGKILL should that take a minute."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, cwd=ROOT)
        running = None
        try:
            running = Running(_wait_until_ready(process, log), process.pid)
            yield running
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if running:
                running.exit_code = code


def _wait_until_ready(process: "subprocess.Popen[str]", log: Path) -> str:
    assert process.stdout
    for line in process.stdout:
        if found := re.search(r"listening on (\S+)", line):
            threading.Thread(target=process.stdout.read, daemon=True).start()  # the pipe must not fill up
            _await_health(found.group(1))
            return found.group(1)
    raise RuntimeError(f"the server ended with code {process.wait()} before it listened; see {log}")


def _await_health(address: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="readiness")
        while stub.Check(request, wait_for_ready=True, timeout=30).status != health_pb2.HealthCheckResponse.SERVING:
            if time.monotonic() > end:
                raise RuntimeError(f"{address} was not ready within {seconds:.0f} s")
            time.sleep(0.1)
