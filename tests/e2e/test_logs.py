"""The log of a real server: one line for each call, no text of any request, and nobody who has to read it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fakes.faulty_server import ROW_FAILS, STEP_RAISES
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from support.calls import Peer, chat, failure_of, read, read_until, streamed, unary
from support.contention import serving_with_faults
from support.servers import ServerProcess, write_config

MARKER = "xyzzy-plugh"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServerProcess]:
    """Logs all it can, as JSON."""
    folder = tmp_path_factory.mktemp("logs")
    config = write_config(folder, [{"name": "tiny", "path": tiny_model, "aliases": ["small"]}], budget_gb=1)
    with serving_with_faults(config, INFERD_LOG_LEVEL="debug", INFERD_LOG_FORMAT="json") as process:
        process.wait_for_log('"ready"')
        yield process


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as peer:
        yield peer


async def line_of(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """The access line of a request."""
    line = await asyncio.to_thread(server.wait_for_log, f'"request_id": "{request_id}"')
    return dict(json.loads(line))


async def test_a_call_s_line_says_who_asked_what_came_of_it_and_where_the_time_went(
    server: ServerProcess, peer: Peer
) -> None:
    answer = await peer.inference.Generate(
        unary("small", prompt="hello", max_tokens=5, ignore_eos=True, request_id="whole")
    )
    line = await line_of(server, "whole")
    assert line["logger"] == "inferd.access"
    assert line["method"] == "/inferd.v1.InferenceService/Generate"
    assert (line["model"], line["code"], line["reason"]) == ("tiny", "OK", "")
    assert line["peer"].startswith("127.0.0.1:")
    assert line["prompt_tokens"] == answer.usage.prompt_tokens
    assert (line["completion_tokens"], line["cached_prompt_tokens"], line["preemptions"]) == (5, 0, 0)
    assert line["finish_reason"] == "max_tokens"
    assert line["load_seconds"] > 0
    assert 0 <= line["queue_seconds"] < line["first_token_seconds"] <= line["seconds"]
    assert sum('"request_id": "whole"' in each for each in server.log) == 1


async def test_a_failure_s_line_has_its_reason_and_its_counts(server: ServerProcess, peer: Peer) -> None:
    await failure_of(peer.inference.Generate(unary("nothing", prompt="x", request_id="unknown")))
    line = await line_of(server, "unknown")
    assert (line["model"], line["code"], line["reason"]) == ("nothing", "NOT_FOUND", "MODEL_NOT_FOUND")
    assert "prompt_tokens" not in line

    stream = peer.inference.StreamGenerate(
        streamed("tiny", prompt="x", max_tokens=50, seed=ROW_FAILS, request_id="row")
    )
    answer = await read(stream)
    assert answer.error is not None
    line = await line_of(server, "row")
    assert (line["code"], line["reason"]) == ("INTERNAL", "ENGINE_FAILED")
    assert line["completion_tokens"] == 2

    stream = peer.inference.StreamGenerate(
        streamed("tiny", prompt="x", max_tokens=4000, ignore_eos=True, request_id="left")
    )
    await read_until(stream, "delta")
    stream.cancel()
    line = await line_of(server, "left")
    assert (line["code"], line["reason"]) == ("CANCELLED", "")
    assert line["completion_tokens"] >= 1


async def test_no_text_of_any_field_reaches_the_log(server: ServerProcess, peer: Peer) -> None:
    def request(**fields: Any) -> inf.GenerateRequest:
        return inf.GenerateRequest(**{"model": "tiny", "prompt": "x", "stop": gen.StopOptions(max_tokens=8), **fields})

    secret_chat = chat(("system", MARKER), ("user", MARKER), ("assistant", MARKER))
    secret_chat.messages[0].name = secret_chat.messages[1].tool_call_id = MARKER
    secret_chat.messages[2].tool_calls.add(id=MARKER, name=MARKER, arguments_json=json.dumps({MARKER: MARKER}))
    tool = gen.Tool(name=MARKER, description=MARKER, parameters_json=json.dumps({"title": MARKER}))
    broken_tool = gen.Tool(name="f", description=MARKER, parameters_json="{" + MARKER)
    constraints: list[dict[str, Any]] = [
        {"json_schema": json.dumps({"type": "string", "const": MARKER})},
        {"json_schema": "{" + MARKER},
        {"json_schema": json.dumps({"type": MARKER})},
        {"regex": MARKER},
        {"regex": "(" + MARKER},
        {"lark_grammar": f'start: "{MARKER}"'},
        {"lark_grammar": MARKER},
        {"choice": gen.OutputConstraint.Choices(options=[MARKER])},
        {"choice": gen.OutputConstraint.Choices(options=[MARKER, MARKER])},
    ]
    requests = [
        request(prompt=MARKER),
        request(prompt=MARKER, session_id=MARKER),
        request(prompt=MARKER * 10_000),
        request(prompt=MARKER, sampling=gen.SamplingOptions(seed=ROW_FAILS)),
        request(prompt=MARKER, sampling=gen.SamplingOptions(seed=STEP_RAISES)),
        request(prompt=MARKER, sampling=gen.SamplingOptions(temperature=-1)),
        request(stop=gen.StopOptions(max_tokens=2, sequences=[MARKER])),
        request(stop=gen.StopOptions(max_tokens=2, sequences=[MARKER, ""])),
        request(chat=secret_chat),
        request(chat=gen.ChatInput(messages=secret_chat.messages[1:2], tools=[tool])),
        request(chat=gen.ChatInput(messages=secret_chat.messages[1:2], tools=[broken_tool])),
        request(
            chat=gen.ChatInput(messages=secret_chat.messages[1:2], template_variables_json=json.dumps({"a": MARKER}))
        ),
        request(chat=gen.ChatInput(messages=secret_chat.messages[1:2], template_variables_json=MARKER)),
        *(request(output=gen.OutputOptions(constraint=gen.OutputConstraint(**each))) for each in constraints),
    ]
    outcomes = await asyncio.gather(*map(peer.inference.Generate, requests), return_exceptions=True)
    codes = {each.code() for each in outcomes if isinstance(each, grpc.aio.AioRpcError)}
    assert {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL} <= codes
    await failure_of(peer.inference.Embed(inf.EmbedRequest(model="tiny", texts=[MARKER])))
    await peer.inference.Tokenize(inf.TokenizeRequest(model="tiny", prompt=MARKER))
    await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=1, request_id="last"))
    await line_of(server, "last")
    assert not [line for line in server.log if MARKER in line]
    assert all(line.startswith("{") for line in server.log), "every line is JSON"


async def test_a_caller_s_texts_forge_no_line(server: ServerProcess, peer: Peer) -> None:
    hostile = 'x\n{"event": "forged"}\r\x1b[2J'
    await failure_of(peer.inference.Generate(unary(hostile, prompt="x", request_id="hostile")))
    await failure_of(peer.inference.Generate(unary("m" * 100_000, prompt="x", request_id="r" * 100_000)))
    await line_of(server, "hostile")
    assert not [line for line in server.log if json.loads(line)["event"] == "forged"]
    assert max(map(len, server.log)) < 5000


def serve_without_reader(config: Path, **files: Any) -> tuple[subprocess.Popen[str], str]:
    """A server with these standard files, and where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inferd_server", "serve", "--config", str(config), "--log-level", "debug"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        **files,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().removeprefix("listening on ").strip()


async def ask_for_info(peer: Peer) -> None:
    await peer.inference.GetServerInfo(inf.GetServerInfoRequest(), timeout=60)


@pytest.mark.parametrize("stderr", ["nobody reads", "disk full", "closed"])
async def test_nobody_has_to_read_the_log(tiny_model: Path, tmp_path: Path, stderr: str) -> None:
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model}], budget_gb=1)
    read_end, write_end = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    files: dict[str, Any] = {"stderr": {"nobody reads": write_end, "disk full": full, "closed": None}[stderr]}
    if stderr == "closed":
        files["preexec_fn"] = lambda: os.close(2)
    process, address = serve_without_reader(config, **files)
    os.close(full)
    os.close(write_end)
    try:
        async with Peer(address) as peer:
            await peer.wait_until_ready()
            for _ in range(30):
                await asyncio.gather(*(ask_for_info(peer) for _ in range(100)))
            await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=2), timeout=60)
            assert await peer.check("readiness") == 1
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert time.monotonic() - began < 15
    finally:
        process.kill()
        process.wait(10)
        os.close(read_end)
        assert process.stdout is not None
        process.stdout.close()
