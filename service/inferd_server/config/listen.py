"""The address to listen at: its forms, and whether other machines can reach it."""

import ipaddress
import re
import sys

HOST_AND_PORT = "HOST:PORT (port 0 to 65535; an IPv6 host in brackets)"
FORMS = f"{HOST_AND_PORT} or unix:/path"
# sockaddr_un.sun_path, with its terminating zero.
MAX_SOCKET_PATH_NBYTES = 103 if sys.platform == "darwin" else 107
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def listen_problem(address: str, *, insecure: bool, guarded: bool = False) -> str:
    """What is wrong with an address; "" if nothing is. Those that other machines can reach are allowed where the
    server is `guarded` (by TLS or keys), or the operator says `insecure`."""
    if address.startswith("unix:"):
        return _socket_problem(address.removeprefix("unix:"))
    host = _host(address)
    if host is None:
        return f"must be {FORMS}; got {address!r}"
    if insecure or guarded or is_loopback(host):
        return ""
    return (
        f"{address} can be reached from other machines, and the server has neither TLS nor keys: anyone there could "
        "use and unload the models. Set tls.certificate and tls.key, or auth.keys_file, listen at 127.0.0.1 or a unix: "
        "socket, or say --insecure"
    )


def is_exposed(address: str) -> bool:
    """Whether other machines can reach a valid address."""
    return not address.startswith("unix:") and not is_loopback(_host(address) or "")


def metrics_listen_problem(address: str, *, insecure: bool) -> str:
    """The same for the address of the metrics."""
    host = _host(address)
    if host is None:
        return f"must be {HOST_AND_PORT}; got {address!r}"
    if insecure or is_loopback(host):
        return ""
    return (
        f"{address} can be reached from other machines: anyone there could read which models are used, and how much. "
        "Listen at 127.0.0.1, or say --insecure"
    )


def endpoint_problem(endpoint: str, *, insecure: bool) -> str:
    """What is wrong with the address of a collector; "" if nothing is."""
    scheme, has_scheme, rest = endpoint.rpartition("://")
    if (has_scheme and scheme not in ("http", "https")) or _host(rest.removesuffix("/")) is None:
        return f"must be {HOST_AND_PORT}, or http:// or https:// before it; got {endpoint!r}"
    if scheme == "https" and insecure:
        return f"{endpoint} asks for TLS, and tracing.insecure for none"
    return ""


def probe_listen_problem(address: str) -> str:
    """The same for the address of the probes; other machines may reach it: it tells health and nothing else."""
    return "" if _host(address) is not None else f"must be {HOST_AND_PORT}; got {address!r}"


def _host(address: str) -> str | None:
    """The host of HOST:PORT; None if it is no such address."""
    match = _HOST_AND_PORT.fullmatch(address)
    return None if match is None or int(match["port"]) > 65535 else match["host"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _socket_problem(path: str) -> str:
    if not path.startswith("/") or not path.isprintable():
        return f"must be {FORMS}, with an absolute path; got 'unix:{path}'"
    if len(path.encode()) > MAX_SOCKET_PATH_NBYTES:
        return f"the path of a unix: socket has at most {MAX_SOCKET_PATH_NBYTES} bytes"
    return ""
