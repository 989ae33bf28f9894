"""TLS to a server: whom to believe, and who we are."""

import ssl
from pathlib import Path

import grpc

from inferd_client.errors import invalid_parameter


def tls_credentials(
    ca: str | Path | None = None, certificate: str | Path | None = None, key: str | Path | None = None
) -> grpc.ChannelCredentials:
    """Credentials for AsyncClient and Client, from files in PEM form.

    Args:
        ca: authorities that may vouch for the server; None: those that gRPC brings along.
        certificate, key: our own, for a server that wants to know its clients; both or none.

    Raises:
        InvalidParameter: a file is missing or no good, or the key is of another certificate.
    """
    if (certificate is None) != (key is None):
        missing, given = ("key", "certificate") if key is None else ("certificate", "key")
        raise invalid_parameter(missing, f"is needed beside {given}")
    authorities = None if ca is None else _authorities(Path(ca))
    if certificate is None or key is None:
        return grpc.ssl_channel_credentials(authorities)
    chain, private_key = _pair(Path(certificate), Path(key))
    return grpc.ssl_channel_credentials(authorities, private_key, chain)


def _authorities(path: Path) -> bytes:
    content = _content("ca", path)
    try:
        # grpc says nothing of a file that it can't use, and then trusts nobody.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise invalid_parameter("ca", f"{path} holds no certificate in PEM form") from None
    return content


def _pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    contents = _content("certificate", certificate), _content("key", key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, _no_passphrase)
    except ssl.SSLError as error:
        reason = (error.reason or "no certificate and key in PEM form").lower().replace("_", " ")
        raise invalid_parameter("key", f"{certificate} and {key} are no pair: {reason}") from None
    return contents


def _no_passphrase() -> str:
    raise invalid_parameter("key", "is protected by a passphrase; take one that is not")


def _content(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise invalid_parameter(field, f"{path} cannot be read: {error.strerror or error}") from None
