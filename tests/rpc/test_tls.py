"""TLS over real sockets: who may connect, what is presented, who is noted; and the port for probes alone."""

import asyncio
import logging
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fakes.generations import finished, started
from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import inference_service_pb2_grpc
from inferd_server.core.tls import TlsIdentity
from inferd_server.rpc import server
from support.certificates import Authority
from support.rpc_world import World, open_channel, open_world
from support.streams import eventually

CHECK = health_pb2.HealthCheckRequest()
REQUEST = pb.StreamGenerateRequest(model="tiny", prompt="x")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def foreign() -> Authority:
    return Authority()


def identity(authority: Authority, clients: Authority | None = None) -> TlsIdentity:
    return TlsIdentity(*authority.issue(), None if clients is None else clients.pem)


async def check(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.AioRpcError | None:
    """The error of a health check over a connection of its own; None if it is answered."""
    async with open_channel(address, credentials) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(CHECK, timeout=20)
        except grpc.aio.AioRpcError as error:
            return error
    return None


async def certificate_at(address: str) -> str:
    """The certificate that a new connection is shown, in PEM form."""
    host, port = address.rsplit(":", 1)
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def test_calls_are_answered_over_tls_alone(authority: Authority, foreign: Authority) -> None:
    mine = authority.channel_credentials()
    async with open_world(identity=identity(authority), credentials=mine) as world:
        await world.health.Check(CHECK)
        assert [message async for message in world.inference.StreamGenerate(REQUEST)]
        for credentials in (None, foreign.channel_credentials()):
            error = await check(world.address, credentials)
            assert error is not None
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # and not its deadline
        assert await check(world.address, authority.channel_credentials()) is None


async def test_http2_is_agreed_on_and_old_protocols_are_not(authority: Authority) -> None:
    async with open_world(identity=identity(authority)) as world:
        host, port = world.address.rsplit(":", 1)

        def shake(version: ssl.TLSVersion) -> str | None:
            context = ssl.create_default_context(cadata=authority.pem.decode())
            context.maximum_version = version
            context.set_alpn_protocols(["h2"])
            with (
                socket.create_connection((host, int(port))) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                return secure.selected_alpn_protocol()

        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert await asyncio.to_thread(shake, version) == "h2"
        with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises(ssl.SSLError):
            await asyncio.to_thread(shake, ssl.TLSVersion.TLSv1_1)


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02"], ids=["nothing", "half a record"])
async def test_a_handshake_that_never_ends_is_ended(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.5)
    async with open_world(identity=identity(authority)) as world:
        host, port = world.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await writer.wait_closed()


async def test_a_ticket_for_a_session_is_worth_nothing_once_the_authority_is_another(
    authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    pair = authority.client_files(tmp_path, "a.internal")
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(pair.certificate, pair.key)
    context.set_alpn_protocols(["h2"])
    async with open_world(identity=identity(authority, authority)) as world:
        host, port = world.address.rsplit(":", 1)

        def greeted(session: ssl.SSLSession | None) -> tuple[bool, bool, ssl.SSLSession | None]:
            """Whether the server says anything, whether the session was taken up, and the session."""
            with (
                socket.create_connection((host, int(port)), timeout=20) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
            ):
                return bool(secure.recv(100)), secure.session_reused or False, secure.session

        answered, _, session = await asyncio.to_thread(greeted, None)
        assert answered
        assert session is not None
        assert (await asyncio.to_thread(greeted, session))[:2] == (True, True)
        world.server.present(identity(authority, foreign))
        with suppress(ssl.SSLError, ConnectionError):  # the refusal may also come at once
            assert (await asyncio.to_thread(greeted, session))[:2] == (False, False)


async def test_a_client_without_a_certificate_of_ours_is_refused(authority: Authority, foreign: Authority) -> None:
    mine = authority.channel_credentials("worker-7.internal")
    async with open_world(identity=identity(authority, authority), credentials=mine) as world:
        await world.health.Check(CHECK)
        chain, key = foreign.issue("worker-7.internal")
        stranger = grpc.ssl_channel_credentials(authority.pem, key, chain)
        for credentials in (authority.channel_credentials(), stranger, None):
            error = await check(world.address, credentials)
            assert error is not None
            assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("names", "common_name", "noted"),
    [
        (("worker-7.internal",), "a name", "worker-7.internal"),
        (("a.internal", "b.internal"), None, "a.internal"),
        (("x" * 60 + ".internal",), None, "x" * 60 + ".in" + "…"),
    ],
)
async def test_the_clients_name_is_in_the_access_log(
    authority: Authority, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], common_name: str | None, noted: str
) -> None:
    caplog.set_level(logging.INFO, "inferd.access")
    chain, key = authority.issue(*names, common_name=common_name)
    mine = grpc.ssl_channel_credentials(authority.pem, key, chain)
    async with open_world(identity=identity(authority, authority), credentials=mine) as world:
        await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
        await eventually(lambda: bool(caplog.records))
    [record] = caplog.records
    assert record.client == noted


async def test_without_client_certificates_the_log_names_nobody(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "inferd.access")
    async with open_world(identity=identity(authority), credentials=authority.channel_credentials()) as world:
        await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
        await eventually(lambda: bool(caplog.records))
    assert not hasattr(caplog.records[0], "client")


async def test_a_new_identity_is_seen_by_new_connections_while_streams_go_on(authority: Authority) -> None:
    go_on = asyncio.Event()

    async def script(request: Any, **given: Any) -> Any:
        yield started(request)
        await go_on.wait()
        yield finished()

    first, second = identity(authority), identity(authority)
    async with open_world(identity=first, credentials=authority.channel_credentials()) as world:
        world.generations.script = script
        stream = world.inference.StreamGenerate(REQUEST)
        await stream.read()
        assert await certificate_at(world.address) in first.certificates.decode()
        world.server.present(second)
        assert await certificate_at(world.address) in second.certificates.decode()
        assert await check(world.address, authority.channel_credentials()) is None
        go_on.set()
        assert (await stream.read()).HasField("finished")


async def test_an_identity_that_grpc_can_not_use_leaves_the_old_one(authority: Authority) -> None:
    first = identity(authority)
    async with open_world(identity=first) as world:
        for broken in (TlsIdentity(b"junk", b"junk"), TlsIdentity(first.certificates, authority.issue()[1])):
            world.server.present(broken)
            assert await check(world.address, authority.channel_credentials()) is None
            assert await certificate_at(world.address) in first.certificates.decode()
        second = identity(authority)
        world.server.present(second)
        assert await certificate_at(world.address) in second.certificates.decode()


async def test_clients_whose_authority_was_replaced_are_refused(authority: Authority, foreign: Authority) -> None:
    async with open_world(identity=identity(authority, authority)) as world:
        mine = authority.channel_credentials("a.internal")
        assert await check(world.address, mine) is None
        world.server.present(identity(authority, foreign))
        assert await check(world.address, mine) is not None


async def test_a_unix_socket_may_speak_tls_too(authority: Authority, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    mine = authority.channel_credentials()
    async with (
        open_world(identity=identity(authority), address=address),
        grpc.aio.secure_channel(address, mine, options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        await health_pb2_grpc.HealthStub(channel).Check(CHECK)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_a_sockets_file_has_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s"
    async with open_world(address=f"unix:{path}", socket_mode=mode) as world:
        assert stat.S_IMODE(path.stat().st_mode) == mode
        await world.health.Check(CHECK)
    assert not path.exists()


# --- the port for probes ------------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(authority: Authority) -> Any:
    """A server that wants client certificates, with a port for probes."""
    async with open_world(
        identity=identity(authority, authority),
        credentials=authority.channel_credentials("a.internal"),
        probe_address="127.0.0.1:0",
    ) as world:
        yield world


async def test_probes_need_no_certificate_and_get_health_alone(guarded: World) -> None:
    async with open_channel(guarded.server.probe_address) as channel:
        for service in ("", "liveness", "readiness"):
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_service_pb2_grpc.InferenceServiceStub(channel).Generate(pb.GenerateRequest(model="tiny"))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="x" * 10_000))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_watch_on_the_probes_port_ends_with_the_server(guarded: World) -> None:
    async with open_channel(guarded.server.probe_address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(CHECK)
        await watch.read()
        await asyncio.wait_for(guarded.server.stop(30), 10)
        with pytest.raises(grpc.aio.AioRpcError):
            await watch.read()


async def test_a_probes_port_that_is_taken_stops_the_start(guarded: World) -> None:
    with pytest.raises(OSError, match=guarded.server.probe_address):
        async with open_world(probe_address=guarded.server.probe_address):
            pass
