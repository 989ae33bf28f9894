"""Certificates made in a moment: an authority, servers' and clients' pairs, and their files."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc
import trustme

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class PairFiles:
    """Paths as text: a chain, its key, and the authority that issued it."""

    certificate: str
    key: str
    authority: str

    @property
    def chain(self) -> str:
        """What the certificate's file holds."""
        return Path(self.certificate).read_text()

    @property
    def section(self) -> dict[str, str]:
        """The `tls` section of a file that names the pair."""
        return {"certificate": self.certificate, "key": self.key}


class Authority:
    """Issues certificates that those who trust it accept."""

    def __init__(self) -> None:
        self._ca = trustme.CA(organization_name="Testing")

    @property
    def pem(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def issue(self, *names: str, common_name: str | None = None, until: datetime | None = None) -> tuple[bytes, bytes]:
        """(chain, key) in PEM form, for `names` (default: this machine)."""
        pair = self._ca.issue_cert(*(names or HOSTS), common_name=common_name, not_after=until)
        return b"".join(part.bytes() for part in pair.cert_chain_pems), pair.private_key_pem.bytes()

    def server_files(self, folder: Path, *, until: datetime | None = None) -> PairFiles:
        """A new pair written to the same files of the folder as the last."""
        paths = [folder / name for name in ("server.pem", "server.key", "authority.pem")]
        for path, content in zip(paths, (*self.issue(until=until), self.pem), strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return PairFiles(*map(str, paths))

    def client_files(self, folder: Path, name: str) -> PairFiles:
        """A client's pair, in files of its name."""
        paths = [folder / f"{name}.{kind}" for kind in ("pem", "key", "ca")]
        for path, content in zip(paths, (*self.issue(name), self.pem), strict=True):
            path.write_bytes(content)
        return PairFiles(*map(str, paths))

    def server_credentials(self, *names: str, clients: bool = False) -> grpc.ServerCredentials:
        """Those of a server of these names; with `clients`, one that wants to know its clients."""
        chain, key = self.issue(*names)
        return grpc.ssl_server_credentials([(key, chain)], self.pem if clients else None, clients)

    def channel_credentials(self, client: str | None = None) -> grpc.ChannelCredentials:
        """Those of somebody who trusts this authority, and is its client of that name."""
        chain, key = self.issue(client) if client else (None, None)
        return grpc.ssl_channel_credentials(self.pem, key, chain)
