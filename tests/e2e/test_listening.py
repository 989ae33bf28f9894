"""Where a server listens: ports, unix sockets, and what it refuses; the command line that starts it."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.calls import Peer, unary
from support.servers import ServerProcess

INFERD = str(Path(sys.executable).with_name("inferd"))


def serve(model: Path, address: str, *flags: str) -> ServerProcess:
    """A server of one folder, which does not linger at its end."""
    arguments = ["serve", "--model", str(model), "--listen", address, "--drain-delay-s", "0", *flags]
    return ServerProcess(arguments, program=(INFERD,))


def refused(*arguments: str | Path, code: int = 1) -> str:
    """The one line that `inferd serve` says before it exits with `code`."""
    done = subprocess.run(
        [INFERD, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def said(stderr: str) -> list[str]:
    """Its lines, without those of the log and the note about the budget."""
    return [line for line in stderr.splitlines() if not line.startswith(("20", "serving "))]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="inferd-") as name:
        yield Path(name)


async def test_a_folder_is_served_by_its_name_on_a_free_port(tiny_model: Path) -> None:
    server = serve(tiny_model, "127.0.0.1:0")
    try:
        address = server.wait_until_listening()
        assert address.startswith("127.0.0.1:")
        assert int(address.rpartition(":")[2]) > 0
        async with Peer(address) as peer:
            await peer.wait_until_ready()
            answer = await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=1))
            assert answer.model.name == "tiny"
    finally:
        server.close()


async def test_a_unix_socket_is_its_owner_s_alone_and_goes_with_the_server(tiny_model: Path, folder: Path) -> None:
    path = folder / "inferd.sock"
    server = serve(tiny_model, f"unix:{path}")
    try:
        assert server.wait_until_listening() == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with Peer(server.address) as peer:
            await peer.wait_until_ready()
            await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=1))
        [line] = said(refused("--model", tiny_model, "--listen", f"unix:{path}"))
        assert str(path) in line
    finally:
        server.close()
    assert not path.exists()


async def test_a_socket_left_by_a_killed_server_is_taken_over(tiny_model: Path, folder: Path) -> None:
    path = folder / "inferd.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = serve(tiny_model, f"unix:{path}")
    try:
        server.wait_until_listening()
        async with Peer(server.address) as peer:
            await peer.wait_until_ready()
    finally:
        server.close()


def test_a_file_that_is_no_socket_is_left_alone(tiny_model: Path, folder: Path) -> None:
    path = folder / "precious"
    path.write_text("data")
    assert str(path) in refused("--model", tiny_model, "--listen", f"unix:{path}")
    assert path.read_text() == "data"


def test_a_taken_port_is_one_line_that_names_it(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        [line] = said(refused("--model", tiny_model, "--listen", address))
    assert address in line
    assert "in use" in line


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:5000"])
def test_an_address_that_others_reach_needs_insecure(tiny_model: Path, address: str) -> None:
    [line] = said(refused("--model", tiny_model, "--listen", address))
    assert "--insecure" in line
    assert address in line


async def test_insecure_opens_it(tiny_model: Path) -> None:
    server = serve(tiny_model, "0.0.0.0:0", "--insecure")
    try:
        port = server.wait_until_listening().rpartition(":")[2]
        async with Peer(f"127.0.0.1:{port}") as peer:
            await peer.wait_until_ready()
    finally:
        server.close()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "127.0.0.1", ":50051", "unix:", "127.0.0.1:x"])
def test_an_address_that_is_none_is_one_line(tiny_model: Path, address: str) -> None:
    [line] = said(refused("--model", tiny_model, "--listen", address))
    assert "listen" in line


def test_wrong_command_lines_say_how(tiny_model: Path, folder: Path) -> None:
    for arguments in ([], ["--demo", "--model", str(tiny_model)], ["--no-such-flag"]):
        assert len(said(refused(*arguments, code=2))) == 1
    assert str(folder / "nothing") in refused("--model", folder / "nothing")
    assert "nothing.yaml" in refused("--config", folder / "nothing.yaml")
    broken = folder / "inferd.yaml"
    broken.write_text("server: {listen: 5, nonsense: 1}\nmodels: []\n")
    lines = said(refused("--config", broken))
    assert len(lines) >= 4, lines
    assert all(str(broken) in line for line in lines), lines


def test_neither_a_home_nor_any_variable_is_needed(tiny_model: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    server = subprocess.Popen(
        [INFERD, "serve", "--model", str(tiny_model), "--listen", "127.0.0.1:0", "--drain-delay-s", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environ,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening on 127.0.0.1:")
    finally:
        server.terminate()
        assert server.wait(20) == 0
        server.stdout.close()  # type: ignore[union-attr]
