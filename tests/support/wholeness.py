"""What must hold of a server after every fault, whatever the fault was: the one check of the fault suite."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferd.v1 import model_service_pb2
from support.contention import Client, check_ledger, is_at_rest, state_of
from support.scraping import metrics_url, scrape
from support.servers import ServerProcess

SETTLE_SECONDS = 30.0
"""Until everything that a fault has left must be gone; generous for shared cores."""
PROBE_SECONDS = 5.0
MORE_THREADS = 12
"""asyncio's pool for blocking work (cores + 4) and grpc's own pollers come and go."""
MORE_FILES = 8
MORE_MIB = 64
ALWAYS_SERVING = ("", "liveness", "readiness", "inferd.v1.InferenceService", "inferd.v1.ModelService")
TROUBLE = re.compile(r"Traceback|never retrieved|was destroyed|\[(error|critical)")
SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True)
class Vitals:
    """What a process holds of the machine."""

    rss_mib: float
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> "Vitals":
        process = psutil.Process(pid)
        with process.oneshot():
            return cls(process.memory_info().rss / 2**20, process.num_threads(), process.num_fds())


@dataclass
class Witness:
    """Knows a server as it was before a fault, and checks that it is the same afterwards.

    Attributes:
        models: those that are asked for an answer, before and after.
        metrics: where its metrics are, if its log can't be read.
        before: what the process held once it was warm.
        more_mib: how much its resident memory may grow.
        allowed: pattern of log lines that the fault may cause; no other may tell of trouble.
        seen: lines of the log that were looked at.
    """

    server: ServerProcess
    models: Sequence[str]
    metrics: str = ""
    right: dict[str, list[int]] = field(default_factory=dict)
    before: Vitals = field(default_factory=lambda: Vitals(0, 0, 0))
    more_mib: float = MORE_MIB
    allowed: str = ""
    seen: int = 0

    @classmethod
    async def of(cls, server: ServerProcess, *models: str, metrics: str = "") -> "Witness":
        """Warm the server and note what it answers and holds."""
        witness = cls(server, models, metrics, seen=len(server.log))
        client = Client(server.address)
        try:
            for model in models:
                witness.right[model] = (await client.answer(model)).ids
        finally:
            await client.close()
        await witness.check(vitals=False)
        witness.before = Vitals.of(server.pid)
        return witness

    async def check(self, *, vitals: bool = True) -> None:
        """The server is whole: nothing runs or waits, no lease is out, the ledger is exact, health tells the truth,
        the next request of a new connection gets the same tokens, every loaded model can be unloaded and its bytes
        come back, and the process holds no more of the machine than before."""
        client = Client(self.server.address)
        try:
            await self._settles(client)
            await self._health_is_true(client)
            await self._answers(client)
            await self._gives_everything_back(client)
            await self._answers(client)
        finally:
            await client.close()
        if vitals:
            await self._holds_no_more()
        self._log_is_clean()

    async def _settles(self, client: Client) -> None:
        """At rest, by every account."""
        listed = await self._until(client.list, lambda found: all(map(is_at_rest, found.models)))
        check_ledger(listed)
        loaded = [model.memory for model in listed.models if state_of(model) == "LOADED"]
        assert listed.memory.used_bytes == sum(max(each.estimated_bytes, each.weights_bytes) for each in loaded)
        assert listed.memory.reserved_bytes == 0
        figures = await scrape(self.metrics or metrics_url(self.server))
        for name in ("inferd_leases", "inferd_requests_running", "inferd_requests_waiting"):
            assert figures(name) == 0, name
        assert figures("inferd_memory_charged_bytes") == listed.memory.used_bytes

    async def _health_is_true(self, client: Client) -> None:
        states = await client.states()
        wanted = {
            **dict.fromkeys(ALWAYS_SERVING, True),
            **{f"inferd.v1.Model/{n}": s == "LOADED" for n, s in states.items()},
        }
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        for name, serving in wanted.items():
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PROBE_SECONDS)
            assert (answer.status == SERVING) == serving, name

    async def _answers(self, client: Client) -> None:
        for model, right in self.right.items():
            assert (await client.answer(model, timeout=SETTLE_SECONDS)).ids == right, model

    async def _gives_everything_back(self, client: Client) -> None:
        """A lease or a row that somebody forgot would make a model busy for ever."""
        for name, state in (await client.states()).items():
            if state == "LOADED":
                await self._until(lambda name=name: self._unload_if_idle(client, name), lambda done: done)
        assert (await client.list()).memory.used_bytes == 0

    async def _unload_if_idle(self, client: Client, name: str) -> bool:
        message = model_service_pb2.UnloadModelRequest(name=name, mode=model_service_pb2.UNLOAD_MODE_IF_IDLE)
        try:
            await client.models.UnloadModel(message, timeout=SETTLE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return False
            raise
        return True

    async def _holds_no_more(self) -> None:
        before = self.before

        async def now() -> Vitals:
            return Vitals.of(self.server.pid)

        def fits(found: Vitals) -> bool:
            return (
                found.threads <= before.threads + MORE_THREADS
                and found.files <= before.files + MORE_FILES
                and found.rss_mib <= before.rss_mib + self.more_mib
            )

        print(f"before {before}, after {await self._until(now, fits)}")

    async def _until(self, look: Callable[[], Any], claim: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not claim(found := await look()):
            assert time.monotonic() < deadline, f"still after {SETTLE_SECONDS:.0f} s: {found}; before: {self.before}"
            await asyncio.sleep(0.05)
        return found

    def _log_is_clean(self) -> None:
        lines = self.server.log[self.seen :]
        self.seen += len(lines)
        bad = [line for line in lines if TROUBLE.search(line) and not (self.allowed and re.search(self.allowed, line))]
        assert not bad, bad
