"""What is wrong with certificates and keys in PEM form, before the server presents them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from .problems import Problem

CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What reading a broken certificate or key raises, early or late."""


@dataclass(frozen=True, slots=True)
class _Certificate:
    """What counts here of a certificate.

    Attributes:
        public_key: as bytes, to compare.
        has_names: whether it is for any host (subjectAltName).
    """

    name: str
    begins: datetime
    ends: datetime
    public_key: bytes
    has_names: bool


class Inspection:
    """A look at the files' contents, by key of the section, at a time.

    Attributes:
        ends: when the first of the server's certificates expires, seconds since 1970.
    """

    def __init__(self, contents: Mapping[str, bytes], now: datetime) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.ends: float = 0.0
        self._now = now
        self._inspect(contents)

    def _inspect(self, contents: Mapping[str, bytes]) -> None:
        chain = self._certificates("certificate", contents["certificate"]) if "certificate" in contents else []
        private_key = self._private_key(contents["key"]) if "key" in contents else None
        if chain and private_key is not None:
            self._check_pair(chain, private_key)
        for certificate in chain:
            self._check_dates(certificate)
        self.ends = min((each.ends.timestamp() for each in chain), default=0.0)
        if chain and not chain[0].has_names:
            self.warnings.append("tls.certificate: it names no host (subjectAltName), so clients will refuse it")
        if "client_ca" in contents:
            self._check_authorities(self._certificates("client_ca", contents["client_ca"]))

    def _certificates(self, key: str, content: bytes) -> list[_Certificate]:
        try:
            return [_read(certificate) for certificate in x509.load_pem_x509_certificates(content)]
        except UNREADABLE:
            self._refuse(key, "holds no certificate in PEM form, or one that is broken")
            return []

    def _private_key(self, content: bytes) -> PrivateKeyTypes | None:
        try:
            key = load_pem_private_key(content, password=None)
        except TypeError:
            self._refuse("key", "is protected by a passphrase, and nobody is there to type it")
        except UNREADABLE:
            self._refuse("key", "holds no private key in PEM form, or one that is broken")
        else:
            if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
                return key
            if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, CURVES):
                return key
            self._refuse("key", "must be RSA of at least 2048 bits, or ECDSA on P-256, P-384 or P-521")
        return None

    def _check_pair(self, chain: list[_Certificate], private_key: PrivateKeyTypes) -> None:
        wanted = _as_bytes(private_key.public_key())
        fits = [certificate.public_key == wanted for certificate in chain]
        if not any(fits):
            self._refuse("key", "does not belong to tls.certificate")
        elif not fits[0]:
            self._refuse("certificate", "the server's own certificate must come first in its file")

    def _check_dates(self, certificate: _Certificate) -> None:
        if certificate.ends <= self._now:
            self._refuse("certificate", f"{certificate.name} expired at {certificate.ends:%Y-%m-%d %H:%M} UTC")
        elif certificate.begins > self._now:
            begins = certificate.begins
            self._refuse("certificate", f"{certificate.name} is not valid before {begins:%Y-%m-%d %H:%M} UTC")

    def _check_authorities(self, authorities: list[_Certificate]) -> None:
        expired = [each for each in authorities if each.ends <= self._now]
        if authorities and len(expired) == len(authorities):
            self._refuse("client_ca", "every certificate in it has expired: no client could connect")
            return
        self.warnings += [f"tls.client_ca: {each.name} has expired" for each in expired]

    def _refuse(self, key: str, message: str) -> None:
        # One problem for each key: the first, which most likely causes the others.
        if all(problem.path != f"tls.{key}" for problem in self.problems):
            self.problems.append(Problem(f"tls.{key}", message))


def _read(certificate: x509.Certificate) -> _Certificate:
    """Its parts are parsed only when they are asked for: raises one of UNREADABLE for each that is broken."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        has_names = bool(list(names.value))
    except x509.ExtensionNotFound:
        has_names = False
    return _Certificate(
        certificate.subject.rfc4514_string() or "a certificate without a name",
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        _as_bytes(certificate.public_key()),
        has_names,
    )


def _as_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
