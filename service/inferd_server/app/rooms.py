"""The rooms of one server, made from its configuration and handed to each other."""

import logging
import time
from dataclasses import asdict
from importlib.metadata import version

from inferd_server.config import (
    Config,
    IdentityWatch,
    budget_report,
    entries,
    memory_figures,
    registry_limits,
    work_limit_nbytes,
)
from inferd_server.core.model import ContentionPolicy
from inferd_server.core.observer import UNOBSERVED
from inferd_server.engine import device
from inferd_server.registry.registry import Registry
from inferd_server.rpc.server import Server, ServerInfo, Services
from inferd_server.scheduler.memory import WorkMemory
from inferd_server.serving.embeddings import Embeddings
from inferd_server.serving.encodings import Encodings
from inferd_server.serving.generations import Generations
from inferd_server.serving.in_flight import InFlight
from inferd_server.serving.lifecycle import Lifecycle, Phase
from inferd_server.serving.pictures import Pictures
from inferd_server.serving.rerankings import Rerankings
from inferd_server.text.texts import Texts

from . import settings, telemetry
from .loader import EngineLoader
from .openers import OpenEngine, load_picture_reader

log = logging.getLogger("inferd.app")


class Rooms:
    """What serves, before anything runs.

    Attributes:
        memory: what requests may take beside the weights.
        certificate: what watches the certificate's files; None without TLS.
        monitoring: None where nobody asked for metrics.
        tracing: None where nobody asked for traces.
    """

    def __init__(self, config: Config, open_engine: OpenEngine, work_limit: int | None) -> None:
        figures = device.report()
        budget_report(config, figures.working_set_nbytes).log(log)
        limits = registry_limits(config, memory_figures(config, figures.working_set_nbytes).ceiling_nbytes)
        if (memory_limits := device.set_limits(limits.ceiling_nbytes)) is not None:
            log.info("the device's memory limits", extra=asdict(memory_limits))
        self._fixed_work_limit = work_limit
        self.memory = WorkMemory(self._work_limit(config))
        log.info("memory for requests, beside weights", extra={"limit_nbytes": self.memory.limit_nbytes})
        files, identity = config.tls_files, config.identity
        self.certificate = None if files is None or identity is None else IdentityWatch(files, identity)
        self.lifecycle = Lifecycle()
        self.loader = EngineLoader(open_engine, self.memory)
        self.registry = Registry(entries(config), self.loader, limits, active_nbytes=device.active_nbytes)
        self.texts = Texts()
        self.pictures = Pictures(load_picture_reader)
        self.monitoring = telemetry.monitoring(config, figures, self.registry, self._is_ready, self._certificate_end)
        self.tracing = telemetry.tracing(config)
        self._observer = UNOBSERVED if self.monitoring is None else self.monitoring.metrics
        self.loader.observer = self._observer
        self.callers = settings.callers(config)
        self._serve_requests(config, figures, limits.policy)

    def _serve_requests(self, config: Config, figures: device.DeviceReport, policy: ContentionPolicy) -> None:
        """The upper rooms: what turns calls into work of the registry's models."""
        serving = settings.serving_options(config)
        in_flight = InFlight(serving.max_queue)
        self.generations = Generations(
            self.registry,
            self.texts,
            serving,
            in_flight=in_flight,
            pictures=self.pictures,
            observer=self._observer,
        )
        encodings = Encodings(self.registry, serving.requests, in_flight, observer=self._observer)
        services = Services(
            self.generations,
            Embeddings(encodings, self.texts),
            Rerankings(encodings, self.texts),
            self.registry,
            self.lifecycle,
            _server_info(config, figures, policy),
            callers=self.callers,
            reflection=config.server.reflection,
        )
        self.server = Server(services, settings.listen_settings(config), observer=self._observer, tracer=self.tracing)

    def limit_work(self, config: Config) -> None:
        """Give requests what a configuration leaves them beside its models."""
        self.memory.limit(self._work_limit(config))

    def forget_files(self, name: str) -> None:
        """Forget what was read of a model's files beside its weights."""
        self.texts.forget(name)
        self.pictures.forget(name)

    def _work_limit(self, config: Config) -> int:
        if self._fixed_work_limit is not None:
            return self._fixed_work_limit
        return work_limit_nbytes(config, device.report().working_set_nbytes, device.machine_nbytes())

    def _is_ready(self) -> bool:
        return self.lifecycle.phase is Phase.READY

    def _certificate_end(self) -> float:
        return 0.0 if self.certificate is None else self.certificate.identity.ends


def _server_info(config: Config, figures: device.DeviceReport, policy: ContentionPolicy) -> ServerInfo:
    return ServerInfo(
        version=version("inferd"),
        mlx_version=figures.mlx_version,
        device=figures.device,
        start_time=time.time(),
        policy=policy,
        request_overrides=config.request_overrides,
        max_message_bytes=config.server.max_message_nbytes,
        max_queue=config.server.max_queue,
        media_limits=config.server.media_limits,
    )
