"""Who the server is towards its clients, and which of them it believes."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """PEM text, found good by config/tls.py.

    Attributes:
        certificates: the server's certificate, then those that lead to its authority.
        private_key: its key, without a passphrase.
        client_authorities: who issues the clients' certificates; None: clients need none.
        ends: when the first of `certificates` expires, seconds since 1970.
    """

    certificates: bytes
    private_key: bytes = field(repr=False)
    client_authorities: bytes | None = None
    ends: float = 0.0
