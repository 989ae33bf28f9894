"""The certificate that new connections see; it can be replaced while the server runs."""

import grpc

from inferd_server.core.tls import TlsIdentity


class Certificates:
    """Presents an identity. Connections that are open keep the one they began with."""

    def __init__(self, identity: TlsIdentity) -> None:
        self._identity = identity
        self._told = identity
        self._asks_clients = identity.client_authorities is not None

    def credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with. For one port: grpc is told of each replacement once."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._identity),
            self._fetch,  # type: ignore[arg-type]  # the stubs forget that None is an answer
            require_client_authentication=self._asks_clients,
        )

    def present(self, identity: TlsIdentity) -> None:
        """Present another from the next connection on. Whether clients need a certificate stays as it was."""
        self._identity = identity

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """grpc asks at each handshake, one at a time, on threads of its own: what to present from now on; None: what
        it was told last. It waits here for nothing."""
        identity = self._identity
        if identity is self._told:
            return None
        self._told = identity
        return _configuration(identity)


def _configuration(identity: TlsIdentity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.private_key, identity.certificates)], root_certificates=identity.client_authorities
    )
