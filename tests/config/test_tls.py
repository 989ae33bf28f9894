"""The files of the tls section: all that is wrong with them at once, and what they say once they have changed."""

import base64
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.config import Config
from inferd_server.config.certificates import Inspection
from inferd_server.config.tls import IdentityWatch, TlsFiles, read_identity
from support.certificates import Authority, PairFiles

Problems = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> PairFiles:
    return authority.server_files(tmp_path)


def test_a_good_pair_is_read_and_named_relative_to_the_file(valid: Callable[..., Config], pair: PairFiles) -> None:
    config = valid(tls={"certificate": "server.pem", "key": "server.key", "client_ca": "authority.pem"})
    assert config.identity is not None
    assert config.identity.certificates == Path(pair.certificate).read_bytes()
    assert config.identity.client_authorities == Path(pair.authority).read_bytes()
    assert config.warnings == ()
    assert "PRIVATE KEY" not in repr(config)


def test_a_flag_names_a_file_from_the_working_directory(
    valid: Callable[..., Config], pair: PairFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    (other / "flag.key").write_bytes(Path(pair.key).read_bytes())
    monkeypatch.chdir(other)
    config = valid(flags={"tls.key": "flag.key"}, tls={"certificate": "server.pem"})
    assert config.tls_files == TlsFiles(Path(pair.certificate), other / "flag.key")


def test_without_the_section_there_is_no_tls(valid: Callable[..., Config]) -> None:
    config = valid(tls=None)
    assert (config.tls_files, config.identity) == (None, None)


@pytest.mark.parametrize(
    ("stated", "missing"),
    [(["certificate"], ["key"]), (["key"], ["certificate"]), (["client_ca"], ["certificate", "key"])],
)
def test_half_a_pair_names_what_is_missing(
    problems_of: Problems, pair: PairFiles, stated: list[str], missing: list[str]
) -> None:
    files = {"certificate": pair.certificate, "key": pair.key, "client_ca": pair.authority}
    found = problems_of(tls={key: files[key] for key in stated})
    assert found == {f"tls.{key}": f"is required beside tls.{stated[0]}" for key in missing}


def test_every_file_tells_its_own_problem(problems_of: Problems, pair: PairFiles, tmp_path: Path) -> None:
    Path(pair.key).write_text("nonsense")
    Path(pair.authority).write_bytes(b"\0" * (2 << 20))
    found = problems_of(tls={"certificate": "none.pem", "key": pair.key, "client_ca": pair.authority})
    assert set(found) == {"tls.certificate", "tls.key", "tls.client_ca"}
    assert "No such file" in found["tls.certificate"]
    assert "no private key in PEM form" in found["tls.key"]
    assert "larger than" in found["tls.client_ca"]
    os.mkfifo(tmp_path / "pipe")
    assert "it is no file" in problems_of(tls={"certificate": "pipe", "key": pair.key})["tls.certificate"]


def test_a_key_that_belongs_to_another_certificate_is_refused(
    problems_of: Problems, pair: PairFiles, authority: Authority
) -> None:
    Path(pair.key).write_bytes(authority.issue()[1])
    assert problems_of(tls=pair.section) == {"tls.key": "does not belong to tls.certificate"}


def test_the_servers_own_certificate_comes_first(problems_of: Problems, pair: PairFiles, authority: Authority) -> None:
    chain = Path(pair.certificate)
    chain.write_bytes(authority.pem + chain.read_bytes())
    assert "must come first" in problems_of(tls=pair.section)["tls.certificate"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (ed25519.Ed25519PrivateKey.generate(), "must be RSA"),
        (rsa.generate_private_key(65537, 1024), "must be RSA of at least 2048 bits"),
        (ec.generate_private_key(ec.SECP256K1()), "P-256"),
    ],
    ids=["ed25519", "rsa 1024", "secp256k1"],
)
def test_a_key_that_clients_would_refuse_is_refused(
    problems_of: Problems, pair: PairFiles, key: Any, message: str
) -> None:
    Path(pair.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert message in problems_of(tls=pair.section)["tls.key"]


def test_a_key_under_a_passphrase_is_refused(problems_of: Problems, pair: PairFiles) -> None:
    key = load_pem_private_key(Path(pair.key).read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    Path(pair.key).write_bytes(encrypted)
    assert "passphrase" in problems_of(tls=pair.section)["tls.key"]


def test_an_expired_certificate_is_refused(problems_of: Problems, authority: Authority, tmp_path: Path) -> None:
    old = authority.server_files(tmp_path, until=datetime.now(UTC) - timedelta(days=1))
    assert "expired at" in problems_of(tls=old.section)["tls.certificate"]


def test_a_certificate_from_the_future_and_a_list_of_expired_authorities_are_refused(pair: PairFiles) -> None:
    files = TlsFiles(Path(pair.certificate), Path(pair.key), Path(pair.authority))
    with pytest.raises(Exception, match="is not valid before"):
        read_identity(files, lambda: datetime(1999, 1, 1, tzinfo=UTC))
    with pytest.raises(Exception, match=r"tls\.client_ca: every certificate in it has expired"):
        read_identity(files, lambda: datetime(9999, 1, 1, tzinfo=UTC))


def test_a_key_that_others_may_read_is_warned_of(valid: Callable[..., Config], pair: PairFiles) -> None:
    Path(pair.key).chmod(0o644)
    [warning] = valid(tls=pair.section).warnings
    assert "0644" in warning
    Path(pair.key).chmod(0o440)  # as Kubernetes mounts a secret for a group
    assert valid(tls=pair.section).warnings == ()


def test_tls_alone_asks_nobody_who_they_are(valid: Callable[..., Config], pair: PairFiles) -> None:
    [warning] = valid(server={"listen": "0.0.0.0:1"}, tls=pair.section).warnings
    assert "TLS alone" in warning
    assert valid(server={"listen": "127.0.0.1:1"}, tls=pair.section).warnings == ()
    mutual = {**pair.section, "client_ca": pair.authority}
    assert valid(server={"listen": "0.0.0.0:1"}, tls=mutual).warnings == ()


def test_what_is_no_text_is_refused_by_the_schema(problems_of: Problems) -> None:
    found = problems_of(tls={"certificate": 5, "nonsense": 1, "key": ""})
    assert set(found) == {"tls.certificate", "tls.key", "tls.nonsense"}


CHAIN, KEY = Authority().issue()


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@given(st.data())
def test_no_byte_of_a_file_makes_more_than_a_problem(data: st.DataObject) -> None:
    contents = {"certificate": CHAIN, "key": KEY, "client_ca": CHAIN}
    key = data.draw(st.sampled_from(sorted(contents)))
    _, header, body, *_ = contents[key].split(b"-----")
    content = bytearray(base64.b64decode(body))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    label = header.removeprefix(b"BEGIN ")
    contents[key] = b"-----BEGIN %s-----\n%s-----END %s-----\n" % (label, base64.encodebytes(bytes(content)), label)
    Inspection(contents, datetime.now(UTC))


# --- change -------------------------------------------------------------------------------------------------------


@pytest.fixture
def watch(pair: PairFiles) -> IdentityWatch:
    files = TlsFiles(Path(pair.certificate), Path(pair.key))
    return IdentityWatch(files, read_identity(files)[0])


def test_a_new_pair_is_told_once(watch: IdentityWatch, authority: Authority, tmp_path: Path) -> None:
    assert watch.look() is None
    fresh = authority.server_files(tmp_path)
    identity = watch.look()
    assert identity is not None
    assert identity.certificates == Path(fresh.certificate).read_bytes()
    assert watch.look() is None


def test_a_link_to_another_file_is_a_change(watch: IdentityWatch, authority: Authority, tmp_path: Path) -> None:
    assert watch.look() is None
    new = tmp_path / "new"
    new.mkdir()
    authority.server_files(new)
    for name in ("server.pem", "server.key"):
        (new / name).replace(tmp_path / name)
    assert watch.look() is not None


def test_a_broken_pair_is_logged_once_and_changes_nothing(
    watch: IdentityWatch, pair: PairFiles, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch.look()
    Path(pair.certificate).write_text("half a certi")
    with caplog.at_level(logging.INFO, "inferd.tls"):
        assert [watch.look() for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert "tls.certificate: holds no certificate" in record.getMessage()
    Path(pair.key).unlink()
    assert watch.look() is None
    authority.server_files(tmp_path)
    assert watch.look() is not None


def test_the_same_content_written_again_is_no_change(watch: IdentityWatch, pair: PairFiles) -> None:
    watch.look()
    Path(pair.key).write_bytes(Path(pair.key).read_bytes())
    assert watch.look() is None


def test_a_certificate_that_soon_ends_is_told_of_once_a_day_until_another_comes(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    ends = (now + timedelta(days=20)).replace(microsecond=0)
    pair = authority.server_files(tmp_path, until=ends)
    files = TlsFiles(Path(pair.certificate), Path(pair.key))
    identity, _ = read_identity(files)
    assert identity.ends == ends.timestamp()
    days = 0.0
    watch = IdentityWatch(files, identity, lambda: now + timedelta(days=days))
    told = []
    for days in (0, 5.9, 6.1, 6.2, 7.0, 7.2, 19, 30):
        caplog.clear()
        assert watch.look() is None
        told += [days] * len(caplog.records)
    assert told == [6.1, 7.2, 19, 30]
    authority.server_files(tmp_path)
    caplog.clear()
    assert watch.look() is not None
    assert watch.look() is None
    assert not caplog.records
