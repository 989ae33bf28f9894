"""A real server under TLS: its certificate is replaced while it serves, and tools of others get through."""

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from inferd_client import AsyncClient, tls_credentials
from support.calls import Peer, endless, read, read_until, streamed, unary
from support.certificates import Authority, PairFiles
from support.servers import ServerProcess, serving, write_config

INFERD = str(Path(sys.executable).with_name("inferd"))
BUF = str(Path(sys.executable).with_name("buf"))
CLIENTS = 4


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def server(authority: Authority, folder: Path, tiny_model: Path, endless_model: Path) -> Iterator[ServerProcess]:
    """Serves `tiny` and `endless`; with a port for probes, in plaintext."""
    authority.server_files(folder)
    models = [
        {"name": "tiny", "path": tiny_model, "preload": True},
        {"name": "endless", "path": endless_model, "preload": True},
    ]
    config = write_config(folder, models, budget_gb=0.1, server={"probe_listen": "127.0.0.1:0"})
    flags = ["--tls-certificate", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")]
    with serving(config, flags=flags) as running:
        running.wait_until_ready()
        yield running


def presented(server: ServerProcess) -> str:
    """The certificate that a new connection is shown."""
    host, port = server.address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)))


async def until_presented(server: ServerProcess, pair: PairFiles) -> None:
    for _ in range(600):
        if await asyncio.to_thread(presented, server) in pair.chain:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the new certificate is not shown: {server.log}")


async def keep_asking(server: ServerProcess, authority: Authority, stop: asyncio.Event) -> int:
    """Streams over one connection after another until told to stop; none may fail. Returns how many."""
    count = 0
    while not stop.is_set():
        async with Peer(server.address, authority.channel_credentials()) as peer:
            answer = await read(peer.inference.StreamGenerate(streamed("tiny", prompt="x", max_tokens=20)))
            assert answer.end
            count += 1
    return count


@pytest.mark.faults
async def test_the_certificate_is_replaced_under_load(
    server: ServerProcess, authority: Authority, folder: Path
) -> None:
    stop = asyncio.Event()
    async with Peer(server.address, authority.channel_credentials()) as peer:
        long = peer.inference.StreamGenerate(endless("endless"))
        answer = await read_until(long, "started")
        clients = [asyncio.ensure_future(keep_asking(server, authority, stop)) for _ in range(CLIENTS)]
        for by_signal in (False, True, True, False):
            pair = authority.server_files(folder)
            if by_signal:
                server.signal(signal.SIGHUP)
            await until_presented(server, pair)
        stop.set()
        assert min(await asyncio.gather(*clients)) > 0
        for _ in range(3):  # the stream from before goes on
            await read_until(long, "delta", answer)
        long.cancel()
        await peer.wait_until_idle("endless")


async def test_a_broken_pair_leaves_the_old_one_and_is_logged_once(
    server: ServerProcess, authority: Authority, folder: Path
) -> None:
    good = authority.server_files(folder)
    await until_presented(server, good)
    seen = len(server.log)
    (folder / "server.key").write_bytes(authority.issue()[1])
    await asyncio.to_thread(server.wait_for_log, "not replaced: tls.key: does not belong to tls.certificate")
    server.signal(signal.SIGHUP)
    await asyncio.to_thread(server.wait_for_log, "configuration refused; nothing changed")
    await asyncio.sleep(2.1)  # two more looks
    assert len([line for line in server.log[seen:] if "certificate not replaced" in line]) == 1
    assert presented(server) in good.chain
    async with Peer(server.address, authority.channel_credentials()) as peer:
        assert (await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=1))).model.name == "tiny"
    await until_presented(server, authority.server_files(folder))


async def test_probes_are_answered_in_plaintext_on_their_own_port(server: ServerProcess) -> None:
    address = server.wait_for_log("health checks at").partition("health checks at ")[2].split()[0]
    async with Peer(address) as peer:
        assert await peer.check("readiness") == health_pb2.HealthCheckResponse.SERVING


async def test_the_library_gets_through(server: ServerProcess, folder: Path) -> None:
    async with AsyncClient(server.address, credentials=tls_credentials(folder / "authority.pem")) as client:
        assert (await client.generate("tiny", "x", max_tokens=3)).usage.completion_tokens == 3


def test_the_command_gets_through_and_says_what_it_lacks(server: ServerProcess, folder: Path) -> None:
    words = [INFERD, "models", "--json", "--address", server.address]
    done = subprocess.run([*words, "--ca", str(folder / "authority.pem")], capture_output=True, text=True, check=True)
    assert [model["name"] for model in json.loads(done.stdout)["models"]] == ["endless", "tiny"]
    in_clear = subprocess.run(words, capture_output=True, text=True, check=False)
    assert in_clear.returncode == 4
    assert "the server may want TLS" in in_clear.stderr


def test_buf_curl_gets_through(server: ServerProcess, folder: Path) -> None:
    port = server.address.rpartition(":")[2]
    words = [BUF, "curl", "--protocol", "grpc", "--cacert", str(folder / "authority.pem")]
    url = f"https://localhost:{port}/inferd.v1.InferenceService/Generate"
    data = json.dumps({"model": "tiny", "prompt": "x", "stop": {"maxTokens": 3, "ignoreEos": True}})
    done = subprocess.run([*words, "--data", data, url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["completionTokens"] == 3


def test_failed_handshakes_leave_no_lines(server: ServerProcess) -> None:
    before = len(server.log)
    context = ssl.create_default_context()
    host, port = server.address.rsplit(":", 1)
    for _ in range(20):
        with pytest.raises(ssl.SSLError), socket.create_connection((host, int(port))) as plain:
            context.wrap_socket(plain, server_hostname="localhost")
    presented(server)
    assert server.log[before:] == []
