"""How a client connects: address, channel options, retries and credentials, the same for both clients."""

import json
from dataclasses import dataclass
from typing import Any

import grpc

from inferd_client.errors import invalid_parameter

DEFAULT_ADDRESS = "127.0.0.1:50051"
MAX_MESSAGE_NBYTES = 64 << 20
# The deadline of calls that merely look something up; the calls that may wait for a model have none by themselves.
LOOK_UP_SECONDS = 10.0
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")
_UNIX_SCHEMES = ("unix:", "unix-abstract:")
_LOOPBACK_HOSTS = ("localhost", "[::1]")

_RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    # Overload is RESOURCE_EXHAUSTED and says when to come back: retrying it at once would add to it.
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def service_config() -> dict[str, Any]:
    """The gRPC service config. A stream is retried only before its first message.

    It holds no timeouts: gRPC keeps those from the server, and fires them early (measured: 8 s for "10s").
    """
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {"name": [{}], "retryPolicy": _RETRY_POLICY},
            # A load that timed out (LOAD_TIMEOUT is UNAVAILABLE) took minutes: not four times by itself.
            {"name": [{"service": "inferd.v1.ModelService", "method": "LoadModel"}]},
            # A probe wants the first answer.
            {"name": [{"service": "grpc.health.v1.Health", "method": "Check"}]},
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    }


@dataclass(frozen=True, slots=True)
class Connection:
    """Where and how to connect; `open_channel` and `open_async_channel` do it.

    Attributes:
        target: the gRPC target.
        options: channel options.
        credentials: TLS, with the bearer token if there is one; None for plaintext.
        metadata: sent with every call: the bearer token where there is no TLS to carry it.
    """

    target: str
    options: tuple[tuple[str, str | int], ...]
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]

    def open_channel(self) -> grpc.Channel:
        """A channel for blocking calls; connects at its first call."""
        if self.credentials is None:
            return grpc.insecure_channel(self.target, self.options)
        return grpc.secure_channel(self.target, self.credentials, self.options)

    def open_async_channel(self) -> grpc.aio.Channel:
        """A channel for the running event loop; connects at its first call."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.target, self.options)
        return grpc.aio.secure_channel(self.target, self.credentials, self.options)


def connection(address: str, credentials: grpc.ChannelCredentials | None, token: str | None) -> Connection:
    """The connection to `host:port`, `unix:/path` or any gRPC target.

    Raises:
        InvalidParameter: the address is none, or the token would travel in clear over a network.
    """
    target = _target(address)
    local = _is_local(target)
    if token is not None and credentials is None and not local:
        raise invalid_parameter("token", f"needs TLS credentials: {address} is not on this machine")
    if token is not None and credentials is not None:
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    in_clear = token is not None and credentials is None
    metadata = (("authorization", f"Bearer {token}"),) if in_clear else ()
    options = _options(local)
    if target.startswith(_UNIX_SCHEMES) and credentials is not None:
        options += (("grpc.default_authority", "localhost"),)  # a path is no name that a certificate could have
    return Connection(target, options, credentials, metadata)


def _target(address: str) -> str:
    if address.startswith(_SCHEMES):
        return address
    host, separator, port = address.rpartition(":")
    if not host or not separator or not port.isdecimal() or "/" in host:
        raise invalid_parameter("address", f"{address!r} is not HOST:PORT or unix:/PATH")
    # Every address that the name stands for is used (a headless Kubernetes service), round robin.
    return f"dns:///{address}"


def _is_local(target: str) -> bool:
    if target.startswith(_UNIX_SCHEMES):
        return True
    host = target.partition(":")[2].rpartition("/")[2].rpartition(":")[0]
    return host in _LOOPBACK_HOSTS or host.startswith("127.")


def _options(local: bool) -> tuple[tuple[str, str | int], ...]:
    return (
        ("grpc.service_config", json.dumps(service_config())),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_send_message_length", MAX_MESSAGE_NBYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_NBYTES),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # A request may wait long without a byte either way; after two silent pings gRPC would stop pinging.
        ("grpc.http2.max_pings_without_data", 0),
        # A proxy from the environment never stands between two processes of one machine.
        ("grpc.enable_http_proxy", 0 if local else 1),
    )
