"""What the configuration means to the rooms that do not know it."""

from inferd_server.config import Config, registry_limits
from inferd_server.core.access import NO_ACCESS, Access
from inferd_server.rpc.server import ListenSettings
from inferd_server.serving.callers import Callers
from inferd_server.serving.generations import ServingOptions
from inferd_server.serving.served_request import ServedOptions


def listen_settings(config: Config) -> ListenSettings:
    """Where and how the port opens."""
    server = config.server
    return ListenSettings(
        address=server.listen,
        max_message_nbytes=server.max_message_nbytes,
        socket_mode=int(server.socket_mode, 8),
        identity=config.identity,
        probe_address=server.probe_listen,
    )


def callers(config: Config) -> Callers:
    """Who may ask, and how much."""
    nobody = Access(models=("*",), methods=frozenset()) if config.auth.public_model_health else NO_ACCESS
    return Callers(config.keys, config.caller_limits, shares_prefix_cache=config.auth.share_prefix_cache, nobody=nobody)


def serving_options(config: Config) -> ServingOptions:
    """How requests are served."""
    return ServingOptions(
        requests=ServedOptions(
            policy=registry_limits(config).policy,
            coalesce_seconds=config.server.coalesce_ms / 1000,
            request_timeout_seconds=config.server.request_timeout_s,
            resume_preempted=config.manager.preempted_requests == "resume",
        ),
        max_queue=config.server.max_queue,
    )
