"""The `inferd` command against a real server: what it prints, its exit codes, its one-line errors."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from support.calls import Peer, endless, read_until
from support.servers import ServerProcess

INFERD = str(Path(sys.executable).with_name("inferd"))


async def inferd(address: str, *arguments: str, stdin: str = "", seconds: float = 60) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command."""
    process = await asyncio.create_subprocess_exec(
        *(INFERD, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "INFERD_ADDRESS": address},
    )
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), seconds)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_generate_and_chat_write_the_text_and_json_the_whole_answer(main_server: ServerProcess) -> None:
    address = main_server.address
    code, out, err = await inferd(address, "generate", "tiny", "hello", "--max-tokens", "30", "--temperature", "0")
    assert (code, err) == (0, "")
    piped = await inferd(address, "generate", "tiny", "--max-tokens", "30", "--temperature", "0", stdin="hello\n")
    assert piped == (0, out, "")
    code, told, _ = await inferd(
        address, "generate", "tiny", "hello", "--max-tokens", "30", "--temperature", "0", "--json"
    )
    answer = json.loads(told)
    assert answer["usage"]["completion_tokens"] == 30
    assert answer["finish_reason"] == "max_tokens"
    code, out, err = await inferd(address, "chat", "tiny", "hi", "--system", "be brief", "--max-tokens", "5")
    assert (code, err) == (0, "")
    assert out.endswith("\n")


async def test_models_load_and_unload(main_server: ServerProcess) -> None:
    address = main_server.address
    code, out, _ = await inferd(address, "models", "--json")
    listed = json.loads(out)
    assert [model["name"] for model in listed["models"]] == ["endless", "plain", "serial", "short", "tiny"]
    assert listed["memory"]["limit_bytes"] == 2**30
    assert code == 0
    code, out, _ = await inferd(address, "load", "plain")
    assert (code, "plain\tloaded" in out.replace("  ", "\t") or "loaded" in out) == (0, True)
    code, out, _ = await inferd(address, "load", "plain", "--validate-only")
    assert (code, out) == (0, "fits\n")
    code, out, _ = await inferd(address, "unload", "plain")
    assert code == 0
    assert "unloaded" in out
    code, out, _ = await inferd(address, "models")
    assert code == 0
    assert len(out.splitlines()) == 6


async def test_health_tells_with_its_exit_code(main_server: ServerProcess) -> None:
    address = main_server.address
    assert await inferd(address, "health") == (0, "serving\n", "")
    assert (await inferd(address, "health", "inferd.v1.Model/plain"))[:2] == (1, "not_serving\n")
    code, _, err = await inferd(address, "health", "nothing")
    assert (code, len(err.splitlines())) == (1, 1)
    code, _, err = await inferd("127.0.0.1:1", "health")
    assert (code, len(err.splitlines())) == (2, 1)


async def test_cancel_ends_a_request_by_its_id(main_server: ServerProcess, peer: Peer) -> None:
    stream = peer.inference.StreamGenerate(endless("tiny", request_id="cli"))
    await read_until(stream, "started")
    generating = asyncio.ensure_future(
        inferd(main_server.address, "generate", "endless", "x", "--max-tokens", "1000000", "--request-id", "cmd")
    )
    await peer.wait_for_model("endless", lambda model: model.running_requests == 1, 30)
    code, out, _ = await inferd(main_server.address, "cancel", "cmd")
    assert code == 0
    assert out in {"cancelled\n", "nothing to cancel\n"}  # it may have met its end-of-sequence token
    code, _, err = await generating
    if out == "cancelled\n":
        assert code == 8
        assert err.startswith("error: cancelled by CancelGeneration [CANCELLED_BY_REQUEST]; "), err
        assert err.endswith(" tokens had been made\n"), err
    assert (await inferd(main_server.address, "cancel", "cmd"))[:2] == (0, "nothing to cancel\n")
    stream.cancel()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("generate", "nothing", "x"), 3, "MODEL_NOT_FOUND"),
        (("generate", "tiny", "x", "--temperature", "-1"), 2, "sampling.temperature"),
        (("chat", "plain", "x"), 2, "CAPABILITY_MISSING"),
        (("generate", "short", "x" * 100), 2, "PROMPT_TOO_LONG"),
        (("generate", "tiny", "x", "--strategy", "preempt"), 7, "STRATEGY_DENIED"),
        (
            ("generate", "endless", "x", "--max-tokens", "100000", "--timeout", "0.5", "--temperature", "0"),
            6,
            "time ran out",
        ),
        (("load", "nothing"), 3, "MODEL_NOT_FOUND"),
    ],
)
async def test_an_error_is_one_line_and_an_exit_code(
    main_server: ServerProcess, arguments: tuple[str, ...], code: int, said: str
) -> None:
    exit_code, _, err = await inferd(main_server.address, *arguments)
    assert exit_code == code, err
    [line] = err.splitlines()
    assert line.startswith("error: ")
    assert said in line


async def test_no_server_is_one_line(main_server: ServerProcess) -> None:
    code, _, err = await inferd("127.0.0.1:1", "models")
    assert (code, len(err.splitlines())) == (4, 1)
    code, _, err = await inferd("unix:/nonexistent/inferd.sock", "models")
    assert (code, len(err.splitlines())) == (4, 1)


async def test_ctrl_c_frees_the_row(main_server: ServerProcess, peer: Peer) -> None:
    process = await asyncio.create_subprocess_exec(
        *(INFERD, "generate", "endless", "x", "--max-tokens", "1000000", "--temperature", "0"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "INFERD_ADDRESS": main_server.address},
    )
    await peer.wait_for_model("endless", lambda model: model.running_requests == 1, 30)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 10) == 130
    await peer.wait_until_idle("endless", 2)
