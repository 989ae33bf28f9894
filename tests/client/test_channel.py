"""Addresses, credentials and channel options."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fakes import wire_server
from fakes.wire_server import WireServer
from inferd.v1 import inference_service_pb2
from inferd_client import InvalidParameter
from inferd_client.channel import connection
from support.both_ways import BothWays


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("localhost:50051", "dns:///localhost:50051"),
        ("[::1]:50051", "dns:///[::1]:50051"),
        ("inferd.models.svc:50051", "dns:///inferd.models.svc:50051"),
        ("unix:/run/inferd.sock", "unix:/run/inferd.sock"),
        ("ipv4:10.0.0.1:50051", "ipv4:10.0.0.1:50051"),
    ],
)
def test_an_address_becomes_a_target(address: str, target: str) -> None:
    assert connection(address, None, None).target == target


@pytest.mark.parametrize("address", ["", "localhost", ":50051", "http://localhost:50051", "localhost:http", "/run/x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidParameter, match="HOST:PORT"):
        connection(address, None, None)


def test_a_key_never_travels_in_clear_over_a_network_unless_told_to() -> None:
    with pytest.raises(InvalidParameter, match="TLS"):
        connection("inferd.example:50051", None, "secret")
    allowed = connection("inferd.example:50051", None, "secret", plaintext_key=True)
    assert allowed.metadata == (("authorization", "Bearer secret"),)
    assert "secret" not in repr(allowed)
    over_tls = connection("inferd.example:50051", grpc.ssl_channel_credentials(), "secret")
    assert over_tls.metadata == ()
    for local in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/x", "ipv4:127.0.0.1:1"):
        assert connection(local, None, "secret").metadata == (("authorization", "Bearer secret"),)


def test_a_proxy_never_stands_before_this_machine() -> None:
    assert dict(connection("127.0.0.1:1", None, None).options)["grpc.enable_http_proxy"] == 0
    assert dict(connection("10.0.0.1:1", None, None).options)["grpc.enable_http_proxy"] == 1


def test_messages_may_have_64_mib_and_only_unavailable_is_retried() -> None:
    options = dict(connection("127.0.0.1:1", None, None).options)
    assert options["grpc.max_send_message_length"] == options["grpc.max_receive_message_length"] == 64 << 20
    config = json.loads(str(options["grpc.service_config"]))
    policies = [method["retryPolicy"] for method in config["methodConfig"] if "retryPolicy" in method]
    assert {code for policy in policies for code in policy["retryableStatusCodes"]} == {"UNAVAILABLE"}
    assert {policy["maxAttempts"] for policy in policies} == {4}


def test_a_key_comes_from_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERD_API_KEY", "of-the-environment")
    assert connection("localhost:1", None, None).metadata == (("authorization", "Bearer of-the-environment"),)
    assert connection("localhost:1", None, "given").metadata == (("authorization", "Bearer given"),)
    with pytest.raises(InvalidParameter, match="TLS"):
        connection("inferd.example:1", None, None)
    monkeypatch.setenv("INFERD_API_KEY", "")
    assert connection("inferd.example:1", None, None).metadata == ()


@pytest.mark.parametrize("key", ["", "two words", "line\n", "schlüssel", "x" * 5000])
def test_what_can_be_no_key_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        connection("localhost:1", None, key)
    assert not key or key not in str(refused.value)


async def test_the_key_goes_with_every_call(server: WireServer, connect: Callable[..., Any]) -> None:
    server.script("Tokenize", inference_service_pb2.TokenizeResponse())
    server.script("StreamGenerate", wire_server.answer("x"))
    async with connect(server.address, api_key="secret") as client:
        await client.call("tokenize", "tiny", "x")
        await client.read("stream", "tiny", "x")
    assert [call.metadata["authorization"] for call in server.calls] == ["Bearer secret"] * 2


async def test_messages_above_grpcs_own_limit_pass_both_ways(server: WireServer, client: BothWays) -> None:
    text = "x" * (6 << 20)
    server.script("Generate", inference_service_pb2.GenerateResponse(text=text))
    assert (await client.call("generate", "tiny", text)).text == text


async def test_a_unix_socket_is_an_address(tmp_path: Path, connect: Callable[..., Any]) -> None:
    with wire_server.running(f"unix:{tmp_path}/inferd.sock") as server:
        server.script("Tokenize", inference_service_pb2.TokenizeResponse(count=1))
        async with connect(server.address) as client:
            assert (await client.call("tokenize", "tiny", "x")).count == 1
