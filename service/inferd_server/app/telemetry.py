"""Who watches the server, if anyone: what nobody asked for is not even imported."""

from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

from inferd_server.config import Config
from inferd_server.engine import device
from inferd_server.registry.registry import Registry

if TYPE_CHECKING:
    from inferd_server.telemetry.monitoring import Monitoring
    from inferd_server.telemetry.tracing import Tracing


def monitoring(
    config: Config,
    figures: device.DeviceReport,
    registry: Registry,
    is_ready: Callable[[], bool],
    certificate_end: Callable[[], float],
) -> "Monitoring | None":
    """The metrics and their address; None where the configuration names none.

    Args:
        certificate_end: when the server's certificate ends, in seconds of the Unix epoch; 0.0 without one.
    """
    if config.metrics.listen is None:
        return None
    # Imported here: a server that nobody watches needs no metrics library.
    from inferd_server.telemetry.monitoring import Build, Monitoring  # noqa: PLC0415

    build = Build(version("inferd"), figures.mlx_version, figures.device)
    return Monitoring(
        config.metrics.listen,
        registry,
        build,
        is_ready,
        process_nbytes=device.process_nbytes,
        certificate_end=certificate_end,
    )


def tracing(config: Config) -> "Tracing | None":
    """The traces and where they go; None where the configuration names no endpoint."""
    section = config.tracing
    if section.endpoint is None:
        return None
    # Imported here: a server that is not traced needs no OpenTelemetry.
    from inferd_server.telemetry.tracing import Tracing  # noqa: PLC0415

    return Tracing(
        section.endpoint,
        version=version("inferd"),
        sample_ratio=section.sample_ratio,
        insecure=section.insecure,
        record_prompts=section.record_prompts,
    )
