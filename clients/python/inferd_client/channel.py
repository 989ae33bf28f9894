"""How a client connects: address, channel options, retries and credentials, the same for both clients."""

import json
import os
from dataclasses import dataclass, field
from typing import Any

import grpc

from inferd_client.errors import invalid_parameter

DEFAULT_ADDRESS = "127.0.0.1:50051"
MAX_MESSAGE_NBYTES = 64 << 20
# The deadline of calls that merely look something up; the calls that may wait for a model have none by themselves.
LOOK_UP_SECONDS = 10.0
API_KEY_VARIABLE = "INFERD_API_KEY"
MAX_KEY_CHARACTERS = 4096
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
        credentials: TLS, with the API key if there is one; None for plaintext.
        metadata: sent with every call: the API key where there is no TLS to carry it.
    """

    target: str
    options: tuple[tuple[str, str | int], ...]
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...] = field(repr=False)

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


def connection(
    address: str, credentials: grpc.ChannelCredentials | None, api_key: str | None, *, plaintext_key: bool = False
) -> Connection:
    """The connection to `host:port`, `unix:/path` or any gRPC target.

    Args:
        address: where to.
        credentials: TLS; None for plaintext.
        api_key: None: that of the environment, if there is one.
        plaintext_key: let a key travel in clear over a network.

    Raises:
        InvalidParameter: the address is none, the key can't be one, or it would travel in clear over a network.
    """
    target = _target(address)
    local = _is_local(target)
    key = api_key if api_key is not None else os.environ.get(API_KEY_VARIABLE) or None
    metadata: tuple[tuple[str, str], ...] = ()
    if key is not None:
        _check_key(key)
        if credentials is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(key))
        elif local or plaintext_key:
            metadata = (("authorization", f"Bearer {key}"),)
        else:
            raise invalid_parameter("api_key", f"needs TLS credentials: {address} is not on this machine")
    options = _options(local)
    if target.startswith(_UNIX_SCHEMES) and credentials is not None:
        options += (("grpc.default_authority", "localhost"),)  # a path is no name that a certificate could have
    return Connection(target, options, credentials, metadata)


def _check_key(key: str) -> None:
    """gRPC's own error about a bad header would repeat it."""
    if not 0 < len(key) <= MAX_KEY_CHARACTERS or not all("!" <= character <= "~" for character in key):
        raise invalid_parameter("api_key", "a key is of ASCII characters without spaces")


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
