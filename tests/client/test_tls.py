"""The client over TLS: files, the command's options, and what it says where a connection can't be made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from typer.testing import CliRunner, Result

from fakes import wire_server
from fakes.wire_server import answer, health
from inferd.v1 import inference_service_pb2
from inferd_client import InvalidParameter, Unavailable, cli, tls_credentials
from support.certificates import Authority, PairFiles

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def mine(authority: Authority, tmp_path: Path) -> PairFiles:
    return authority.client_files(tmp_path, "worker-7")


def inferd(*args: str, **environ: str) -> Result:
    return CliRunner().invoke(cli.app, [*args], env=environ)


async def test_calls_and_streams_go_over_tls(authority: Authority, mine: PairFiles, connect: Connect) -> None:
    with wire_server.running(credentials=authority.server_credentials()) as server:
        server.script("Tokenize", inference_service_pb2.TokenizeResponse(count=1))
        server.script("StreamGenerate", answer("x"))
        credentials = tls_credentials(ca=mine.authority)
        async with connect(server.address, credentials=credentials, api_key="secret") as client:
            assert (await client.call("tokenize", "tiny", "x")).count == 1
            await client.read("stream", "tiny", "x")
    assert [call.metadata["authorization"] for call in server.calls] == ["Bearer secret"] * 2


async def test_a_certificate_of_ours_is_shown(authority: Authority, mine: PairFiles, connect: Connect) -> None:
    with wire_server.running(credentials=authority.server_credentials(clients=True)) as server:
        server.script("Tokenize", inference_service_pb2.TokenizeResponse(count=1))
        credentials = tls_credentials(mine.authority, mine.certificate, mine.key)
        async with connect(server.address, credentials=credentials) as client:
            assert (await client.call("tokenize", "tiny", "x")).count == 1


async def test_tls_over_a_unix_socket(authority: Authority, mine: PairFiles, connect: Connect, tmp_path: Path) -> None:
    with wire_server.running(f"unix:{tmp_path}/s", authority.server_credentials()) as server:
        server.script("Tokenize", inference_service_pb2.TokenizeResponse(count=1))
        async with connect(server.address, credentials=tls_credentials(mine.authority)) as client:
            assert (await client.call("tokenize", "tiny", "x")).count == 1


@pytest.mark.parametrize(
    ("server_kind", "client_kind", "problem"),
    [
        ("tls", "plain", "may want TLS"),
        ("plain", "tls", "speaks no TLS"),
        ("foreign", "tls", "nobody whom we believe"),
        ("other host", "tls", "for another host"),
        ("mtls", "tls", "another certificate of ours"),
    ],
)
async def test_what_keeps_a_connection_from_being_made_is_told(
    authority: Authority, mine: PairFiles, connect: Connect, server_kind: str, client_kind: str, problem: str
) -> None:
    servers = {
        "tls": authority.server_credentials,
        "plain": lambda: None,
        "foreign": Authority().server_credentials,
        "other host": lambda: authority.server_credentials("elsewhere.internal"),
        "mtls": lambda: authority.server_credentials(clients=True),
    }
    credentials = tls_credentials(mine.authority) if client_kind == "tls" else None
    with wire_server.running(credentials=servers[server_kind]()) as server:
        async with connect(server.address, credentials=credentials) as client:
            with pytest.raises(Unavailable, match=problem):  # long before the deadline, which would be another error
                await client.call("health", "readiness", timeout=60)


# --- files --------------------------------------------------------------------------------------------------------


def refusal(*args: Any) -> str:
    with pytest.raises(InvalidParameter) as caught:
        tls_credentials(*args)
    return caught.value.message


def test_files_that_are_no_good_are_named(authority: Authority, mine: PairFiles, tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.pem")
    empty = tmp_path / "empty"
    empty.touch()
    assert "no certificate in PEM form" in refusal(empty)
    assert refusal(None, mine.certificate) == "key: is needed beside certificate"
    assert refusal(None, None, mine.key) == "certificate: is needed beside key"
    other = authority.client_files(tmp_path, "other")
    assert "are no pair: key values mismatch" in refusal(None, mine.certificate, other.key)
    assert "are no pair" in refusal(None, mine.certificate, empty)
    assert "cannot be read" in refusal(None, mine.certificate, tmp_path)
    key = load_pem_private_key(Path(mine.key).read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    Path(mine.key).write_bytes(encrypted)
    assert "passphrase" in refusal(None, mine.certificate, mine.key)


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_takes_files_as_options_and_variables(authority: Authority, mine: PairFiles) -> None:
    with wire_server.running(credentials=authority.server_credentials(clients=True)) as server:
        server.script("Check", health("SERVING"))
        words = ["--address", server.address, "--ca", mine.authority, "--cert", mine.certificate, "--key", mine.key]
        assert inferd("health", *words).stdout == "serving\n"
        environ = {
            "INFERD_ADDRESS": server.address,
            "INFERD_CA": mine.authority,
            "INFERD_CERT": mine.certificate,
            "INFERD_KEY": mine.key,
        }
        assert inferd("health", **environ).stdout == "serving\n"


def test_the_command_says_in_one_line_what_keeps_it_from_connecting(authority: Authority, mine: PairFiles) -> None:
    with wire_server.running(credentials=authority.server_credentials()) as server:
        server.script("ListModels", wire_server.model_service_pb2.ListModelsResponse())
        done = inferd("models", "--address", server.address)
        assert done.exit_code == 4
        assert done.stderr == (
            f"error: can't connect to {server.address}: the server may want TLS, or another certificate of ours; "
            "see --tls, --ca, --cert and --key\n"
        )
        # gRPC's own authorities do not vouch for a test's certificate.
        assert "nobody whom we believe" in inferd("models", "--address", server.address, "--tls").stderr
        assert inferd("models", "--address", server.address, "--ca", mine.authority).exit_code == 0
    done = inferd("models", "--ca", mine.authority + ".none")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
