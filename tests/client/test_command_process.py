"""The `inferd` command as a process of its own: signals, pipes, terminals, and what it imports."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from fakes.wire_server import FOREVER, Refusal, WireServer, answer, delta, finished, model, started, waiting
from inferd.v1 import model_service_pb2

INFERD = str(Path(sys.executable).with_name("inferd"))


def environment(server: WireServer) -> dict[str, str]:
    return {**os.environ, "INFERD_ADDRESS": server.address, "TERM": "xterm"}


def test_ctrl_c_cancels_the_stream_and_exits_130(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), delta("half"), FOREVER])
    process = subprocess.Popen(
        [INFERD, "generate", "tiny", "x"], env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == b"half"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, b"\n", b"")
    assert server.calls[0].ended.wait(10)
    assert server.calls[0].was_cancelled


def test_ctrl_c_during_a_unary_call_exits_130(server: WireServer) -> None:
    server.script("LoadModel", FOREVER)
    process = subprocess.Popen([INFERD, "load", "tiny"], env=environment(server), stderr=subprocess.PIPE)
    call = server.last("LoadModel")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, b"")
    assert call.ended.wait(10)


def test_a_reader_that_closes_the_pipe_ends_the_stream_quietly(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), *[delta("a line\n")] * 20_000, FOREVER])
    command = f"{INFERD} generate tiny x | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(server), capture_output=True, timeout=20, check=False
    )
    assert (done.stdout, done.stderr) == (b"a line\n", b"")
    assert server.calls[0].ended.wait(10)


def test_the_clients_commands_do_not_import_the_server(server: WireServer) -> None:
    server.script("StreamGenerate", answer("x"))
    code = (
        "import sys; from inferd_client import cli; code = cli.app(standalone_mode=False); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('inferd_server', 'mlx', 'transformers')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", "tiny", "x"],
        env=environment(server),
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == b"x\n[]\n"


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, server: WireServer, *args: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [INFERD, *args], env=environment(server), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def wait_for(self, text: str, timeout_seconds: float = 10) -> None:
        deadline = time.monotonic() + timeout_seconds
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.shown!r}"
            self.shown += os.read(self._master, 4096).decode()

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self._master, text.encode())

    def end(self) -> int:
        return self.process.wait(10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._master)


@pytest.fixture
def open_terminal(server: WireServer) -> Iterator[Callable[..., Terminal]]:
    """Starts `inferd` with these arguments on a pseudo-terminal."""
    opened: list[Terminal] = []

    def start(*args: str) -> Terminal:
        opened.append(Terminal(server, *args))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_a_conversation_keeps_its_history_and_ctrl_d_ends_it(
    server: WireServer, open_terminal: Callable[..., Terminal]
) -> None:
    server.script("StreamGenerate", answer("Paris"), answer("Berlin\x1b[31m"))
    terminal = open_terminal("chat", "tiny", "--system", "s")
    terminal.wait_for("> ")
    terminal.type("France?\n")
    terminal.wait_for("Paris\r\n")
    terminal.wait_for("> ")
    terminal.type("Germany?\n")
    terminal.wait_for("Berlin[31m")  # the escape of a model's output does not reach the terminal
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    texts = [message.parts[0].text for message in server.calls[1].request.chat.messages]
    assert texts == ["s", "France?", "Paris", "Germany?"]


def test_a_terminal_shows_what_is_waited_for(server: WireServer, open_terminal: Callable[..., Terminal]) -> None:
    server.script("StreamGenerate", [waiting("LOADING", 0, 0.5), *answer("Paris")])
    terminal = open_terminal("generate", "tiny", "x")
    terminal.wait_for("loading the model: 50%")
    terminal.wait_for("Paris")
    assert terminal.end() == 0
    assert server.calls[0].request.stream.waiting_events


def test_a_missing_prompt_on_a_terminal_is_asked_for_not_waited_for(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal("generate", "tiny")
    terminal.wait_for("error: ")
    assert terminal.end() == 2


def test_a_failed_turn_of_a_conversation_ends_only_itself(
    server: WireServer, open_terminal: Callable[..., Terminal]
) -> None:
    server.script("StreamGenerate", [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")], answer("Paris"))
    terminal = open_terminal("chat", "tiny")
    terminal.wait_for("> ")
    terminal.type("first\n")
    terminal.wait_for("error: refused [QUEUE_FULL]")
    terminal.wait_for("> ")
    terminal.type("second\n")
    terminal.wait_for("Paris")
    texts = [message.parts[0].text for message in server.calls[1].request.chat.messages]
    assert texts == ["second"]


def test_ctrl_c_stops_the_answer_and_not_the_conversation(
    server: WireServer, open_terminal: Callable[..., Terminal]
) -> None:
    server.script("StreamGenerate", [started(), delta("half"), FOREVER], answer("Paris"))
    terminal = open_terminal("chat", "tiny")
    terminal.wait_for("Ctrl-D ends the conversation")
    terminal.wait_for("tiny> ")
    terminal.type("first\n")
    terminal.wait_for("half")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("tiny> ")
    assert server.calls[0].ended.wait(10)
    terminal.type("second\n")
    terminal.wait_for("Paris")
    assert [message.parts[0].text for message in server.calls[1].request.chat.messages] == ["second"]
    terminal.wait_for("tiny> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_an_answer_that_was_cut_says_so_on_a_terminal(
    server: WireServer, open_terminal: Callable[..., Terminal]
) -> None:
    server.script("StreamGenerate", [started(), delta("half"), finished("MAX_TOKENS")])
    terminal = open_terminal("generate", "tiny", "x")
    terminal.wait_for("half\r\n")
    terminal.wait_for("cut at max_tokens")
    assert terminal.end() == 0


def test_models_are_a_table_on_a_terminal(server: WireServer, open_terminal: Callable[..., Terminal]) -> None:
    listed = model_service_pb2.ListModelsResponse(
        models=[model("[red]odd")], memory=model_service_pb2.MemoryBudget(limit_bytes=4 << 30, used_bytes=1 << 30)
    )
    server.script("ListModels", listed)
    terminal = open_terminal("models")
    terminal.wait_for("1.00 GiB of 4.00 GiB used")
    assert "[red]odd" in terminal.shown
    assert terminal.end() == 0


def test_a_conversation_shows_its_images_with_the_first_answer(
    server: WireServer, open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "cat").write_bytes(b"GIF89a")
    server.script("StreamGenerate", [Refusal(grpc.StatusCode.INVALID_ARGUMENT)], answer("A cat."), answer("Grey."))
    terminal = open_terminal("chat", "tiny", "--image", str(tmp_path / "cat"))
    for question, shown in (("What?\n", "error: "), ("What?\n", "A cat.\r\n"), ("Which colour?\n", "Grey.\r\n")):
        terminal.wait_for("> ")
        terminal.type(question)
        terminal.wait_for(shown)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    turns = [
        [[part.WhichOneof("content") for part in message.parts] for message in call.request.chat.messages]
        for call in server.calls
    ]
    assert turns == [[["image", "text"]], [["image", "text"]], [["image", "text"], ["text"], ["text"]]]
