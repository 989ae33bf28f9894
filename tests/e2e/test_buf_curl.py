"""A reflection client that knows nothing of us: `buf curl`, the one that `make setup` installs."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from google.rpc import error_details_pb2

from support.servers import ServerProcess

BUF = str(Path(sys.executable).with_name("buf"))


async def buf_curl(server: ServerProcess, method: str, request: dict[str, Any]) -> tuple[int, list[Any], str]:
    """(exit code, the messages of the answer, what it said on stderr)."""
    process = await asyncio.create_subprocess_exec(
        *(BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--data", json.dumps(request)),
        f"http://{server.address}/{method}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    decoder, text, messages = json.JSONDecoder(), out.decode().strip(), []
    while text:
        message, end = decoder.raw_decode(text)
        messages.append(message)
        text = text[end:].lstrip()
    assert process.returncode is not None
    return process.returncode, messages, err.decode()


async def test_a_unary_call(main_server: ServerProcess) -> None:
    request = {"model": "tiny", "prompt": "x", "stop": {"maxTokens": 3, "ignoreEos": True}}
    code, [answer], _ = await buf_curl(main_server, "inferd.v1.InferenceService/Generate", request)
    assert code == 0
    assert answer["model"]["name"] == "tiny"
    assert answer["finishReason"] == "FINISH_REASON_MAX_TOKENS"
    assert answer["usage"] == {"promptTokens": 1, "completionTokens": 3}


async def test_a_stream(main_server: ServerProcess) -> None:
    message = {"role": "ROLE_USER", "parts": [{"text": "hi"}]}
    request = {"model": "tiny", "chat": {"messages": [message]}, "stop": {"maxTokens": 20, "ignoreEos": True}}
    code, answers, _ = await buf_curl(main_server, "inferd.v1.InferenceService/StreamGenerate", request)
    assert code == 0
    assert "started" in answers[0]
    assert all("delta" in answer for answer in answers[1:-1])
    assert answers[-1]["finished"]["usage"]["completionTokens"] == 20
    assert [int(answer.get("sequence", 0)) for answer in answers] == list(range(len(answers)))


async def test_health(main_server: ServerProcess) -> None:
    for request in ({}, {"service": "readiness"}):
        assert (await buf_curl(main_server, "grpc.health.v1.Health/Check", request))[:2] == (0, [{"status": "SERVING"}])


async def test_the_models(main_server: ServerProcess) -> None:
    code, [answer], _ = await buf_curl(main_server, "inferd.v1.ModelService/ListModels", {})
    assert code == 0
    assert [model["name"] for model in answer["models"]] == ["endless", "plain", "serial", "short", "tiny"]


@pytest.mark.parametrize(
    ("request_", "status", "code", "reason", "types"),
    [
        ({"model": "nothing", "prompt": "x"}, "not_found", 5, "MODEL_NOT_FOUND", {"ErrorInfo", "ResourceInfo"}),
        ({"model": "tiny", "prompt": ""}, "invalid_argument", 3, "INVALID_PARAMETER", {"ErrorInfo", "BadRequest"}),
    ],
)
async def test_errors_show_their_details(
    main_server: ServerProcess, request_: dict[str, Any], status: str, code: int, reason: str, types: set[str]
) -> None:
    exit_code, messages, err = await buf_curl(main_server, "inferd.v1.InferenceService/Generate", request_)
    assert (exit_code, messages) == (8 * code, [])  # buf's own: eight times the status code
    error = json.loads(err)
    assert error["code"] == status
    assert {detail["type"].rpartition(".")[2] for detail in error["details"]} == types
    [packed] = [detail["value"] for detail in error["details"] if detail["type"] == "google.rpc.ErrorInfo"]
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(packed + "=="))
    assert (info.reason, info.domain) == (reason, "inferd")
