"""The composition root: makes the rooms meet, starts them, and stops them in order (docs/semantics.md §9)."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from inferd_server.config import (
    Config,
    ConfigError,
    IdentityWatch,
    budget_report,
    entries,
    file_stamp,
    look_again,
    memory_figures,
    read_keys,
    registry_limits,
    reload_config,
    work_limit_nbytes,
)
from inferd_server.core.access import NO_ACCESS, Access, Key
from inferd_server.core.errors import InferdError, server_draining
from inferd_server.core.model import CheckedFiles, EngineKind, EngineSettings, Loading, ModelEntry, Resident
from inferd_server.core.observer import UNOBSERVED, Observer
from inferd_server.engine import device
from inferd_server.engine.awake import kept_awake
from inferd_server.engine.checks import check_model_folder
from inferd_server.engine.engine import Engine, EngineOf
from inferd_server.engine.importing import IMPORTS
from inferd_server.registry.registry import Registry
from inferd_server.rpc.server import ListenSettings, Server, ServerInfo, Services
from inferd_server.scheduler.memory import WorkMemory
from inferd_server.scheduler.scheduler import Scheduler
from inferd_server.scheduler.threads import Threads
from inferd_server.serving.callers import Callers
from inferd_server.serving.embeddings import Embeddings
from inferd_server.serving.generation import GenerationOptions
from inferd_server.serving.generations import Generations, ServingOptions
from inferd_server.serving.in_flight import InFlight
from inferd_server.serving.lifecycle import Lifecycle, Phase
from inferd_server.serving.pictures import Pictures
from inferd_server.telemetry.loop_watch import LoopWatch
from inferd_server.text.texts import Texts

if TYPE_CHECKING:
    from inferd_server.engine.vision_inputs import PictureReader
    from inferd_server.telemetry.monitoring import Monitoring
    from inferd_server.telemetry.tracing import Tracing

log = logging.getLogger("inferd.app")

JOIN_SECONDS = 10.0
"""Longest wait for engines to end at shutdown; a thread whose step never returns must not hold the process."""
STOP_SECONDS = 1.0
"""For the handlers of requests that were cut to end by themselves."""

CERTIFICATE_SECONDS = 1.0
"""How often the certificate's files are looked at."""
KEYS_SECONDS = 1.0
"""How often the keys file is looked at."""

OpenEngine = Callable[[EngineSettings, Loading], EngineOf[Any, Any]]


def _open_language_engine(settings: EngineSettings, loading: Loading) -> Engine:
    # Imported here: mlx_lm takes a second or two, and the port should be open by then.
    with IMPORTS:
        from inferd_server.engine.language import open_language_engine  # noqa: PLC0415

    return open_language_engine(settings, loading)


def _open_embedding_engine(settings: EngineSettings, loading: Loading) -> EngineOf[Any, Any]:
    with IMPORTS:
        from inferd_server.engine.embedding import open_embedding_engine  # noqa: PLC0415

    return open_embedding_engine(settings, loading)


def _open_vision_engine(settings: EngineSettings, loading: Loading) -> Engine:
    with IMPORTS:
        from inferd_server.engine.vision import open_vision_engine  # noqa: PLC0415

    return open_vision_engine(settings, loading)


OPENERS: dict[EngineKind, OpenEngine] = {
    EngineKind.LANGUAGE: _open_language_engine,
    EngineKind.EMBEDDING: _open_embedding_engine,
    EngineKind.VISION: _open_vision_engine,
}
"""What opens a model of each kind."""


def _open_engine(settings: EngineSettings, loading: Loading) -> Engine:
    return OPENERS[settings.kind](settings, loading)


def _load_picture_reader(entry: ModelEntry) -> "PictureReader":
    # Imported here: only a server with a vision model pays for mlx_vlm.
    with IMPORTS:
        from inferd_server.engine.vision_inputs import PictureReader  # noqa: PLC0415

    engine = entry.engine
    return PictureReader.load(engine.path, trust_remote_code=engine.trust_remote_code, name=entry.name)


class EngineLoader:
    """Opens an engine on a thread of its own, wrapped in its scheduler; all of them share one memory for their work."""

    def __init__(self, open_engine: OpenEngine, memory: WorkMemory) -> None:
        self._open_engine = open_engine
        self._memory = memory
        self.observer: Observer = UNOBSERVED
        self.look_again: Callable[[ModelEntry], CheckedFiles] = CheckedFiles
        self._threads = Threads(device.end_thread)

    async def check(self, entry: ModelEntry) -> CheckedFiles:
        """See core.model.Loader. Off the loop."""
        checked = await asyncio.to_thread(self.look_again, entry)
        await asyncio.to_thread(check_model_folder, checked.entry.engine)
        return checked

    async def load(
        self, entry: ModelEntry, generation: int, loading: Loading, on_death: Callable[[InferdError], None]
    ) -> Resident:
        """See core.model.Loader."""
        return await Scheduler.open(
            entry.engine,
            loading,
            self._open_engine,
            on_death,
            threads=self._threads,
            memory=self._memory,
            observer=self.observer,
        )

    async def close(self) -> None:
        """End the threads, once every engine has ended."""
        await asyncio.to_thread(self._threads.close)


class App:
    """One server: its rooms, and their order of starting and stopping."""

    def __init__(self, config: Config, open_engine: OpenEngine = _open_engine, work_limit: int | None = None) -> None:
        self._config = config
        figures = device.report()
        budget_report(config, figures.working_set_nbytes).log(log)
        self._lifecycle = Lifecycle()
        limits = registry_limits(config, memory_figures(config, figures.working_set_nbytes).ceiling_nbytes)
        if (memory_limits := device.set_limits(limits.ceiling_nbytes)) is not None:
            log.info("the device's memory limits", extra=asdict(memory_limits))
        self._fixed_work_limit = work_limit
        self._memory = WorkMemory(self._work_limit(config))
        log.info("memory for requests, beside weights", extra={"limit_nbytes": self._memory.limit_nbytes})
        self._loader = EngineLoader(open_engine, self._memory)
        self._loader.look_again = lambda entry: look_again(self._config, entry)
        self._registry = Registry(entries(config), self._loader, limits, active_nbytes=device.active_nbytes)
        self._texts = Texts()
        self._pictures = Pictures(_load_picture_reader)
        self._monitoring = self._make_monitoring(figures)
        self._tracing = self._make_tracing()
        observer = UNOBSERVED if self._monitoring is None else self._monitoring.metrics
        self._loader.observer = observer
        serving = _serving_options(config)
        in_flight = InFlight(serving.max_queue)
        self._generations = Generations(
            self._registry,
            self._texts,
            serving,
            in_flight=in_flight,
            pictures=self._pictures,
            observer=observer,
        )
        embeddings = Embeddings(self._registry, self._texts, serving.generation, in_flight, observer=observer)
        self._callers = _make_callers(config)
        info = ServerInfo(
            version=version("inferd"),
            mlx_version=figures.mlx_version,
            device=figures.device,
            start_time=time.time(),
            policy=limits.policy,
            request_overrides=config.request_overrides,
            max_message_bytes=config.server.max_message_nbytes,
            max_queue=config.server.max_queue,
            media_limits=config.server.media_limits,
        )
        self._server = Server(
            Services(
                self._generations,
                embeddings,
                self._registry,
                self._lifecycle,
                info,
                callers=self._callers,
                reflection=config.server.reflection,
            ),
            _listen_settings(config),
            observer=observer,
            tracer=self._tracing,
        )
        files, identity = config.tls_files, config.identity
        self._certificate = None if files is None or identity is None else IdentityWatch(files, identity)
        self._stop = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._is_all_to_be_reloaded = False
        self._background: set[asyncio.Task[None]] = set()

    def _make_monitoring(self, figures: device.DeviceReport) -> "Monitoring | None":
        listen = self._config.metrics.listen
        if listen is None:
            return None
        # Imported here: a server that nobody watches needs no metrics library.
        from inferd_server.telemetry.monitoring import Build, Monitoring  # noqa: PLC0415

        build = Build(version("inferd"), figures.mlx_version, figures.device)
        return Monitoring(
            listen,
            self._registry,
            build,
            lambda: self._lifecycle.phase is Phase.READY,
            process_nbytes=device.process_nbytes,
            certificate_end=lambda: 0.0 if self._certificate is None else self._certificate.identity.ends,
        )

    def _make_tracing(self) -> "Tracing | None":
        tracing = self._config.tracing
        if tracing.endpoint is None:
            return None
        # Imported here: a server that is not traced needs no OpenTelemetry.
        from inferd_server.telemetry.tracing import Tracing  # noqa: PLC0415

        return Tracing(
            tracing.endpoint,
            version=version("inferd"),
            sample_ratio=tracing.sample_ratio,
            insecure=tracing.insecure,
            record_prompts=tracing.record_prompts,
        )

    def _work_limit(self, config: Config) -> int:
        if self._fixed_work_limit is not None:
            return self._fixed_work_limit
        return work_limit_nbytes(config, device.report().working_set_nbytes, device.machine_nbytes())

    async def run(self, announce: Callable[[str], None]) -> int:
        """Serve until a signal; returns the exit code."""
        with kept_awake() if self._config.server.prevent_sleep else contextlib.nullcontext():
            async with self._monitoring or contextlib.nullcontext(), self._tracing or contextlib.nullcontext():
                return await self._serve(announce)

    async def _serve(self, announce: Callable[[str], None]) -> int:
        with self._signals(), LoopWatch():
            address = await self._server.start()
            self._log_opening()
            announce(f"listening on {address}")
            self._begin(self._preload())
            self._begin(self._reload_on_request())
            self._begin(self._watch_certificate())
            self._begin(self._watch_keys())
            await self._stop.wait()
            return await self._shut_down()

    def _log_opening(self) -> None:
        for warning in self._config.warnings:
            log.warning("%s", warning)
        if self._server.probe_address:
            log.info("health checks at %s", self._server.probe_address)

    async def _watch_certificate(self) -> None:
        while self._certificate is not None:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            await self._look_at_certificate(self._certificate)

    async def _look_at_certificate(self, certificate: IdentityWatch) -> None:
        identity = await asyncio.to_thread(certificate.look)
        if identity is not None:
            self._server.present(identity)
            log.info("certificate replaced; open connections keep the old one")

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", exc_info=error)

    async def _preload(self) -> None:
        await self._registry.preload()
        if self._lifecycle.phase is Phase.STARTING:
            self._lifecycle.advance(Phase.READY)
            log.info("ready")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            log.warning("second signal, exiting at once")
            logging.shutdown()
            os._exit(128 + number)
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        self._stop.set()

    def _on_hangup(self) -> None:
        self._is_all_to_be_reloaded = True
        self._reload_asked.set()

    async def _watch_keys(self) -> None:
        path = self._config.keys_path
        if path is None:
            return
        seen = await asyncio.to_thread(file_stamp, path)
        while True:
            await asyncio.sleep(KEYS_SECONDS)
            stamp = await asyncio.to_thread(file_stamp, path)
            if stamp != seen:
                seen = stamp
                self._reload_asked.set()

    async def _reload_on_request(self) -> None:
        """One reload after the other, so that no older keys replace newer ones; several requests during one are one
        more."""
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            reads_all, self._is_all_to_be_reloaded = self._is_all_to_be_reloaded, False
            reload = asyncio.create_task(self._reload() if reads_all else self._reload_keys())
            reload.add_done_callback(self._settle)
            await asyncio.wait([reload])

    async def _reload_keys(self) -> None:
        """Read the keys file again and apply it, or change nothing and say why."""
        path = self._config.keys_path
        assert path is not None, "only a keys file is watched"
        try:
            keys = await asyncio.to_thread(read_keys, path, self._config.request_overrides)
        except ConfigError as error:
            _log_refusal("keys", error)
            return
        self._apply_keys(keys)

    def _apply_keys(self, keys: Sequence[Key]) -> None:
        self._callers.replace_keys(keys)
        self._server.end_revoked_watches()
        log.info("keys reloaded", extra={"keys": len(keys)})

    async def _reload(self) -> None:
        """Read the configuration again and apply it as one transaction, or change nothing and say why."""
        try:
            fresh = await asyncio.to_thread(reload_config, self._config)
        except ConfigError as error:
            _log_refusal("configuration", error)
            return
        self._callers.limit(fresh.caller_limits)
        if fresh.keys is not None:
            self._apply_keys(fresh.keys)
        before = {entry.name: entry for entry in entries(self._config)}
        preloaded = {entry.name for entry in before.values() if entry.preload}
        self._config = fresh
        if self._certificate is not None:
            await self._look_at_certificate(self._certificate)
        self._memory.limit(self._work_limit(fresh))
        await self._registry.replace_entries(entries(fresh))
        for entry in entries(fresh):
            if before.pop(entry.name, None) != entry:
                self._forget_files(entry.name)
        for name in before:
            self._forget_files(name)
        log.info("configuration reloaded", extra={"models": len(fresh.entries), "removed": len(before)})
        # Not those that were to be preloaded before: what an operator unloaded stays unloaded.
        self._begin(self._registry.preload({entry.name for entry in entries(fresh) if entry.name not in preloaded}))

    def _forget_files(self, name: str) -> None:
        """What was read of a model's files beside its weights."""
        self._texts.forget(name)
        self._pictures.forget(name)

    async def _shut_down(self) -> int:
        server = self._config.server
        if self._lifecycle.phase is Phase.READY:
            self._lifecycle.advance(Phase.LAME_DUCK)
            await asyncio.sleep(server.drain_delay_s)
        self._lifecycle.advance(Phase.DRAINING)
        self._registry.end_waiting(server_draining())
        cut = await self._generations.drain(server.drain_timeout_s)
        self._lifecycle.advance(Phase.STOPPED)
        if cut:
            log.warning("requests cut at the end of the drain", extra={"count": cut})
        await self._server.stop(STOP_SECONDS)
        self._pictures.close()
        background = list(self._background)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        return await self._end_engines()

    async def _end_engines(self) -> int:
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                await self._registry.close()
                await self._loader.close()
        except TimeoutError:
            log.error("an engine did not end in time, exiting without it", extra={"seconds": JOIN_SECONDS})
            return 1
        log.info("stopped")
        return 0


def _listen_settings(config: Config) -> ListenSettings:
    server = config.server
    return ListenSettings(
        address=server.listen,
        max_message_nbytes=server.max_message_nbytes,
        socket_mode=int(server.socket_mode, 8),
        identity=config.identity,
        probe_address=server.probe_listen,
    )


def _make_callers(config: Config) -> Callers:
    nobody = Access(models=("*",), methods=frozenset()) if config.auth.public_model_health else NO_ACCESS
    return Callers(config.keys, config.caller_limits, shares_prefix_cache=config.auth.share_prefix_cache, nobody=nobody)


def _log_refusal(what: str, error: ConfigError) -> None:
    for problem in error.problems:
        log.error("%s: %s", what, problem)
    log.error("%s refused; nothing changed", what, extra={"problems": len(error.problems)})


def _serving_options(config: Config) -> ServingOptions:
    return ServingOptions(
        generation=GenerationOptions(
            policy=registry_limits(config).policy,
            coalesce_seconds=config.server.coalesce_ms / 1000,
            request_timeout_seconds=config.server.request_timeout_s,
            resume_preempted=config.manager.preempted_requests == "resume",
        ),
        max_queue=config.server.max_queue,
    )


async def serve(
    config: Config,
    *,
    announce: Callable[[str], None],
    open_engine: OpenEngine = _open_engine,
    work_limit: int | None = None,
) -> int:
    """Run a server on a validated configuration until SIGTERM or SIGINT.

    Args:
        announce: called once with `listening on ADDRESS` when the port is open, before any model loads.
        open_engine: what opens a model; tests script faults here.
        work_limit: bytes for everything but weights; None: what the machine has room for. Tests make it small.

    Returns:
        The process's exit code. Threads may be left that never end (a step that hangs), so the process is to be ended
        from inside the loop, whose own end waits for them.

    Raises:
        OSError: the address can't be bound; the message names it.
    """
    return await App(config, open_engine, work_limit).run(announce)
