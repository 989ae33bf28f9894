"""The files of the `tls` section: what is wrong with them, and what they say once they have changed."""

import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from inferd_server.core.tls import TlsIdentity

from .problems import ConfigError, Problem

log = logging.getLogger("inferd.tls")

MAX_FILE_NBYTES = 1 << 20
EXPIRY_NOTICE = timedelta(days=14)
NOTICE_INTERVAL = timedelta(days=1)
OPEN_MODE = 0o026
"""Bits of a key file's mode that let others read it or change it. A group may read: so secrets are mounted."""

Now = Callable[[], datetime]
Signature = tuple[tuple[int, int, int] | None, ...]


def utc_now() -> datetime:
    """The time that certificates are checked against."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Absolute paths of PEM files; `client_ca` None: clients need no certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def named(self) -> dict[str, Path]:
        """The paths by key of the section, those that are set."""
        paths = {"certificate": self.certificate, "key": self.key, "client_ca": self.client_ca}
        return {key: path for key, path in paths.items() if path is not None}


def read_identity(files: TlsFiles, now: Now = utc_now) -> tuple[TlsIdentity, list[str]]:
    """What the files hold, and what to warn of. Blocking (small reads).

    Raises:
        ConfigError: every problem of the files.
    """
    # Imported here: a server without TLS needs none of it.
    from .certificates import Inspection  # noqa: PLC0415

    contents: dict[str, bytes] = {}
    problems = []
    for key, path in files.named.items():
        try:
            contents[key] = _content(path)
        except OSError as error:
            problems.append(Problem(f"tls.{key}", f"{path} cannot be read: {error.strerror or error}"))
    inspection = Inspection(contents, now())
    problems += inspection.problems
    if problems:
        raise ConfigError(problems)
    identity = TlsIdentity(contents["certificate"], contents["key"], contents.get("client_ca"), inspection.ends)
    return identity, [*inspection.warnings, *_mode_warnings(files.key)]


class IdentityWatch:
    """Notices that the files have changed, and that what is in use soon expires.

    Attributes:
        identity: what is in use.
    """

    def __init__(self, files: TlsFiles, identity: TlsIdentity, now: Now = utc_now) -> None:
        self.identity = identity
        self._files = files
        self._now = now
        self._seen: Signature | None = None
        self._next_notice = datetime.fromtimestamp(identity.ends, UTC) - EXPIRY_NOTICE

    def look(self) -> TlsIdentity | None:
        """What the files hold now, if that is new and good: then it is in use. What is bad is logged once and changes
        nothing. Blocking."""
        fresh = self._fresh()
        if fresh is not None:
            self.identity = fresh
            self._next_notice = datetime.fromtimestamp(fresh.ends, UTC) - EXPIRY_NOTICE
        if self._now() >= self._next_notice:
            self._next_notice = self._now() + NOTICE_INTERVAL
            ends = datetime.fromtimestamp(self.identity.ends, UTC)
            log.warning("the certificate ends at %s UTC, and no other has come", f"{ends:%Y-%m-%d %H:%M}")
        return fresh

    def _fresh(self) -> TlsIdentity | None:
        signature = _signature(self._files)
        if signature == self._seen:
            return None
        self._seen = signature
        try:
            identity, warnings = read_identity(self._files, self._now)
        except ConfigError as error:
            for problem in error.problems:
                log.error("certificate not replaced: %s", problem)
            return None
        if identity == self.identity:
            return None
        for warning in warnings:
            log.warning("%s", warning)
        return identity


def _signature(files: TlsFiles) -> Signature:
    """What differs once a file was written or replaced."""
    return tuple(_stated(path) for path in files.named.values())


def _stated(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
        raise OSError(errno.EINVAL, "it is no file")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_NBYTES + 1)
    if len(content) > MAX_FILE_NBYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_NBYTES} bytes")
    return content


def _mode_warnings(key: Path) -> Iterator[str]:
    try:
        mode = key.stat().st_mode & 0o777
    except OSError:
        return
    if mode & OPEN_MODE:
        yield f"tls.key: others may read or change {key} (mode {mode:04o}); chmod 600 it"
