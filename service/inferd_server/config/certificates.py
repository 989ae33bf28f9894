"""What is wrong with certificates and keys in PEM form, before the server presents them. Pure."""

from collections.abc import Mapping
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from .problems import Problem

CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


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
        self.ends = min((each.not_valid_after_utc.timestamp() for each in chain), default=0.0)
        if chain and not _has_names(chain[0]):
            self.warnings.append("tls.certificate: it names no host (subjectAltName), so clients will refuse it")
        if "client_ca" in contents:
            self._check_authorities(self._certificates("client_ca", contents["client_ca"]))

    def _certificates(self, key: str, content: bytes) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(content)
        except ValueError:
            self._refuse(key, "holds no certificate in PEM form, or one that is broken")
            return []

    def _private_key(self, content: bytes) -> PrivateKeyTypes | None:
        try:
            key = load_pem_private_key(content, password=None)
        except TypeError:
            self._refuse("key", "is protected by a passphrase, and nobody is there to type it")
        except (ValueError, UnsupportedAlgorithm):
            self._refuse("key", "holds no private key in PEM form, or one that is broken")
        else:
            if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
                return key
            if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, CURVES):
                return key
            self._refuse("key", "must be RSA of at least 2048 bits, or ECDSA on P-256, P-384 or P-521")
        return None

    def _check_pair(self, chain: list[x509.Certificate], private_key: PrivateKeyTypes) -> None:
        wanted = private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fits = [_public_bytes(certificate) == wanted for certificate in chain]
        if not any(fits):
            self._refuse("key", "does not belong to tls.certificate")
        elif not fits[0]:
            self._refuse("certificate", "the server's own certificate must come first in its file")

    def _check_dates(self, certificate: x509.Certificate) -> None:
        ends = certificate.not_valid_after_utc
        if ends <= self._now:
            self._refuse("certificate", f"{_name(certificate)} expired at {ends:%Y-%m-%d %H:%M} UTC")
        elif certificate.not_valid_before_utc > self._now:
            begins = certificate.not_valid_before_utc
            self._refuse("certificate", f"{_name(certificate)} is not valid before {begins:%Y-%m-%d %H:%M} UTC")

    def _check_authorities(self, authorities: list[x509.Certificate]) -> None:
        expired = [each for each in authorities if each.not_valid_after_utc <= self._now]
        if authorities and len(expired) == len(authorities):
            self._refuse("client_ca", "every certificate in it has expired: no client could connect")
            return
        self.warnings += [f"tls.client_ca: {_name(each)} has expired" for each in expired]

    def _refuse(self, key: str, message: str) -> None:
        # One problem for each key: the first, which most likely causes the others.
        if all(problem.path != f"tls.{key}" for problem in self.problems):
            self.problems.append(Problem(f"tls.{key}", message))


def _public_bytes(certificate: x509.Certificate) -> bytes | None:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return None


def _has_names(certificate: x509.Certificate) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return False
    return bool(list(names.value))


def _name(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "a certificate without a name"
