"""The `inferd` command in this process: what it sends, writes and exits with."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from typer.testing import CliRunner, Result

from fakes import wire_server
from fakes.wire_server import Refusal, WireServer, answer, delta, started
from inferd.v1 import generation_pb2, inference_service_pb2, model_service_pb2
from inferd_client import cli, decoding
from inferd_client.terminal import write_models

Code = grpc.StatusCode


def inferd(server: WireServer | str, *args: str, **options: Any) -> Result:
    address = server if isinstance(server, str) else server.address
    return CliRunner().invoke(cli.app, [*args], env={"INFERD_ADDRESS": address}, **options)


def test_generate_writes_the_text_and_nothing_else(server: WireServer) -> None:
    server.script("StreamGenerate", answer("Paris", "."))
    done = inferd(server, "generate", "tiny", "The capital", "--max-tokens", "5", "--stop", "a", "--stop", "b")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Paris.\n", "")
    request = server.calls[0].request
    assert (request.prompt, request.stop.max_tokens, list(request.stop.sequences)) == ("The capital", 5, ["a", "b"])
    assert not request.stream.waiting_events


def test_the_address_may_be_an_option(server: WireServer) -> None:
    server.script("StreamGenerate", answer("x"))
    assert inferd("127.0.0.1:1", "generate", "tiny", "x", "--address", server.address).exit_code == 0


def test_the_key_comes_from_a_file_or_from_the_environment(server: WireServer, tmp_path: Path) -> None:
    server.script("StreamGenerate", answer("x"))
    (tmp_path / "key").write_text("of-the-file\nand more\n")
    assert inferd(server, "generate", "tiny", "x", "--api-key-file", str(tmp_path / "key")).exit_code == 0
    environment = {"INFERD_ADDRESS": server.address, "INFERD_API_KEY": "of-the-environment"}
    assert CliRunner().invoke(cli.app, ["generate", "tiny", "x"], env=environment).exit_code == 0
    sent = [call.metadata["authorization"] for call in server.calls]
    assert sent == ["Bearer of-the-file", "Bearer of-the-environment"]
    missing = inferd(server, "models", "--api-key-file", str(tmp_path / "nothing"))
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (2, 1)
    assert "cannot be read" in missing.stderr
    remote = CliRunner().invoke(cli.app, ["models"], env={**environment, "INFERD_ADDRESS": "inferd.example:1"})
    assert (remote.exit_code, "needs TLS" in remote.stderr, "of-the" in remote.stderr) == (2, True, False)


def test_the_prompt_may_come_from_a_pipe(server: WireServer) -> None:
    server.script("StreamGenerate", answer("x"))
    assert inferd(server, "generate", "tiny", input="piped\n").exit_code == 0
    assert inferd(server, "generate", "tiny", "-", input="dash").exit_code == 0
    assert [call.request.prompt for call in server.calls] == ["piped", "dash"]


def test_embed_writes_a_line_of_numbers_for_each_text(server: WireServer) -> None:
    vectors = [b"\0\0\x80\x3f\0\0\0\xc0", b"\0" * 8]
    response = inference_service_pb2.EmbedResponse(dimensions=2, vectors_f32le=vectors, truncated_texts=[1])
    server.script("Embed", response, response, response)
    done = inferd(server, "embed", "tiny", "a", "b c", "--truncate", "--dimensions", "2", "--prompt", "query")
    assert (done.exit_code, done.stdout) == (0, "1 -2\n0 0\n")
    assert done.stderr == "cut, since it is too long: 'b c' …\n"
    request = server.calls[0].request
    assert (list(request.texts), request.truncation, request.dimensions) == (["a", "b c"], 2, 2)
    assert (request.prompt_name, request.HasField("normalize")) == ("query", False)
    piped = inferd(server, "embed", "tiny", "--no-normalize", "--json", input="a\nb c\n")
    assert json.loads(piped.stdout)["vectors"] == [[1.0, -2.0], [0.0, 0.0]]
    assert list(server.calls[1].request.texts) == ["a", "b c"]
    assert server.calls[1].request.HasField("normalize")


def test_rerank_writes_scores_and_documents_the_best_first(server: WireServer) -> None:
    best = [inference_service_pb2.RerankResult(index=1, score=0.75), inference_service_pb2.RerankResult(score=0.5)]
    response = inference_service_pb2.RerankResponse(results=best, truncated_documents=[0])
    server.script("Rerank", response, response)
    done = inferd(server, "rerank", "tiny", "what?", "a", "b c", "--truncate", "--top", "2")
    assert (done.exit_code, done.stdout) == (0, "0.75\tb c\n0.5\ta\n")
    assert done.stderr == "cut, since it is too long: 'a' …\n"
    request = server.calls[0].request
    assert (request.query, list(request.documents)) == ("what?", ["a", "b c"])
    assert (request.truncation, request.top_n, request.return_documents) == (2, 2, False)
    piped = inferd(server, "rerank", "tiny", "what?", "--json", input="a\nb c\n")
    assert json.loads(piped.stdout)["results"][0] == {"index": 1, "score": 0.75, "document": "b c"}


def test_chat_asks_one_question(server: WireServer) -> None:
    server.script("StreamGenerate", answer("Paris"))
    done = inferd(server, "chat", "tiny", "Capital of France?", "--system", "Be short", "--strategy", "wait")
    assert (done.exit_code, done.stdout) == (0, "Paris\n")
    request = server.calls[0].request
    assert [(m.role, m.parts[0].text) for m in request.chat.messages] == [(1, "Be short"), (2, "Capital of France?")]
    assert request.scheduling.contention.strategy == 2


def test_an_answer_may_be_written_as_json(server: WireServer) -> None:
    server.script("StreamGenerate", answer("Paris", "."))
    done = inferd(server, "chat", "tiny", "x", "--json")
    written = json.loads(done.stdout)
    assert (written["text"], written["finish_reason"], written["usage"]["completion_tokens"]) == ("Paris.", "eos", 2)


def test_a_command_waits_for_a_server_that_starts(server: WireServer) -> None:
    starting = Refusal(Code.UNAVAILABLE, "SERVER_STARTING", "the server starts", {}, 0.01)
    server.script("StreamGenerate", *[[starting]] * 9, answer("Paris"))
    done = inferd(server, "generate", "tiny", "-", input="the prompt, read once")
    assert (done.exit_code, done.stdout) == (0, "Paris\n")
    assert {call.request.prompt for call in server.calls} == {"the prompt, read once"}
    server.script(
        "Embed", *[starting] * 5, inference_service_pb2.EmbedResponse(dimensions=1, vectors_f32le=[b"\0" * 4])
    )
    assert inferd(server, "embed", "tiny", "a").stdout == "0\n"


def test_a_command_waits_no_longer_than_its_timeout(server: WireServer) -> None:
    server.script("Embed", *[Refusal(Code.UNAVAILABLE, "SERVER_STARTING", "the server starts", {}, 60)] * 4)
    done = inferd(server, "embed", "tiny", "a", "--timeout", "30")
    assert (done.exit_code, done.stderr) == (4, "error: the server starts [SERVER_STARTING]; retry after 60 s\n")


def test_an_error_after_some_text_keeps_the_text_on_its_own_line(server: WireServer) -> None:
    refusal = Refusal(Code.ABORTED, "PREEMPTED", "interrupted\nfor 'b'", {}, 2)
    server.script("StreamGenerate", [started(), delta("half"), refusal])
    done = inferd(server, "generate", "tiny", "x")
    assert (done.exit_code, done.stdout) == (8, "half\n")
    assert done.stderr == "error: interrupted for 'b' [PREEMPTED]; retry after 2 s\n"


@pytest.mark.parametrize(
    ("refusal", "exit_code"),
    [
        (Refusal(Code.INVALID_ARGUMENT, "INVALID_PARAMETER"), 2),
        (Refusal(Code.NOT_FOUND, "MODEL_NOT_FOUND"), 3),
        (Refusal(Code.RESOURCE_EXHAUSTED, "CAPACITY_EXHAUSTED"), 5),
        (Refusal(Code.DEADLINE_EXCEEDED, "REQUEST_TIMEOUT"), 6),
        (Refusal(Code.UNAUTHENTICATED, "CREDENTIALS_MISSING"), 7),
        (Refusal(Code.PERMISSION_DENIED, "STRATEGY_DENIED"), 7),
        (Refusal(Code.CANCELLED, "CANCELLED_BY_REQUEST"), 8),
        (Refusal(Code.DATA_LOSS, "MODEL_CORRUPT"), 1),
        (Refusal(Code.UNKNOWN), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(server: WireServer, refusal: Refusal, exit_code: int) -> None:
    server.script("StreamGenerate", [refusal])
    done = inferd(server, "generate", "tiny", "x")
    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert done.stderr.startswith("error: refused [")
    assert done.stderr.count("\n") == 1


def test_no_server_is_one_line_that_says_what_to_do(unused_tcp_port: int) -> None:
    done = inferd(f"127.0.0.1:{unused_tcp_port}", "models")
    assert (done.exit_code, done.stderr.count("\n")) == (4, 1)
    assert done.stderr == (
        f"error: no server answers at 127.0.0.1:{unused_tcp_port}: connection refused; "
        "start one with `inferd serve` or name one with --address\n"
    )


def test_a_timeout_is_told_in_seconds(server: WireServer) -> None:
    server.script("ListModels", wire_server.FOREVER)
    done = inferd(server, "models", "--timeout", "0.1")
    assert (done.exit_code, done.stderr) == (6, "error: time ran out after 0.1 s; --timeout sets it\n")


@pytest.mark.parametrize(
    ("refusal", "step"),
    [
        (Refusal(Code.RESOURCE_EXHAUSTED, "WAIT_TIMEOUT"), "make room with `inferd unload`, or raise memory_budget_gb"),
        (Refusal(Code.DATA_LOSS, "MODEL_CORRUPT", metadata={"model": "big"}), "again, then `inferd load big`"),
        (Refusal(Code.UNAVAILABLE, "SERVER_SHUTDOWN", metadata={"completion_tokens": "7"}), "7 tokens had been made"),
    ],
)
def test_an_error_names_the_next_step(server: WireServer, refusal: Refusal, step: str) -> None:
    server.script("StreamGenerate", [started(), refusal])
    assert step in inferd(server, "generate", "tiny", "x").stderr


def test_help_lists_the_exit_codes() -> None:
    shown = inferd("127.0.0.1:1", "--help").stdout.splitlines()
    assert {"3: no such model", "130: Ctrl-C"} <= {line.strip() for line in shown}


def test_the_version_is_told() -> None:
    assert inferd("127.0.0.1:1", "--version").stdout == f"inferd {version('inferd')}\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["generate"], "Missing argument 'MODEL'"),
        (["generate", "tiny", "x", "--nosuch"], "No such option"),
        (["generate", "tiny", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "tiny", "x", "--max-tokens", "-1"], "max_tokens"),
        (["generate", "tiny", "x", "--strategy", "bogus"], "wait_then_preempt"),
        (["unload", "tiny", "--mode", "bogus"], "if_idle"),
        (["models", "--address", "nonsense"], "HOST:PORT"),
        (["nosuch"], "No such command 'nosuch'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(server: WireServer, args: list[str], words: str) -> None:
    done = inferd(server, *args)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


@pytest.mark.parametrize(("program", "verbosity"), [("/x/bin/inferd", "NONE"), ("/x/service.py", "None")])
def test_grpcs_own_lines_are_off_in_the_command_alone(program: str, verbosity: str) -> None:
    code = (
        f"import os, sys; sys.argv = [{program!r}]; os.environ.pop('GRPC_VERBOSITY', None); import inferd_client;"
        "print(os.environ.get('GRPC_VERBOSITY'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{verbosity}\n"


def test_models_are_a_table_on_a_terminal_and_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    message = model_service_pb2.Model(name="a-model-with-a-long-name", aliases=["one", "another-long-alias"])
    budget = model_service_pb2.MemoryBudget(limit_bytes=2**30, used_bytes=2**29)
    write_models([decoding.model(message)], decoding.memory_budget(budget))
    header, row, used = capsys.readouterr().out.splitlines()
    assert row.startswith("a-model-with-a-long-name  ")
    assert row.index("one,another-long-alias") == header.index("ALIASES")
    assert used == "0.50 GiB of 1.00 GiB used"


def test_models_are_columns_for_pipes_and_json_on_demand(server: WireServer) -> None:
    failed = model_service_pb2.ModelError(reason="MODEL_CORRUPT")
    server.script(
        "ListModels",
        model_service_pb2.ListModelsResponse(
            models=[
                wire_server.model("a", aliases=["x", "y"], memory=model_service_pb2.ModelMemory(charged_bytes=1 << 30)),
                wire_server.model(
                    "[red]b", "FAILED", last_error=failed, memory=model_service_pb2.ModelMemory(estimated_bytes=1 << 19)
                ),
            ]
        ),
    )
    lines = inferd(server, "models").stdout.splitlines()
    assert lines[0].split("\t")[:3] == ["NAME", "STATE", "MEMORY"]
    assert lines[1].split("\t") == ["a", "loaded", "1.00 GiB", "0", "0", "0", "", "x,y"]
    assert lines[2].split("\t")[:3] == ["[red]b", "failed (MODEL_CORRUPT)", "0.5 MiB"]
    written = json.loads(inferd(server, "models", "--json").stdout)
    assert [model["name"] for model in written["models"]] == ["a", "[red]b"]


def test_load_and_unload_tell_the_outcome(server: WireServer) -> None:
    server.script("LoadModel", model_service_pb2.LoadModelResponse(model=wire_server.model("a")))
    server.script(
        "UnloadModel",
        model_service_pb2.UnloadModelResponse(model=wire_server.model("a", "UNLOADED"), freed_bytes=1 << 29),
    )
    assert inferd(server, "load", "a", "--pin", "--detach").stdout == "a\tloaded\n"
    assert inferd(server, "unload", "a", "--mode", "force").stdout == "a\tunloaded\t0.50 GiB freed\n"
    loaded, unloaded = [call.request for call in server.calls]
    assert (loaded.pin, loaded.detach, unloaded.mode) == (True, True, model_service_pb2.UNLOAD_MODE_FORCE)


def test_validate_only_tells_whether_it_fits(server: WireServer) -> None:
    response = model_service_pb2.LoadModelResponse
    server.script(
        "LoadModel",
        response(fits=True, evicted_models=["b"]),
        response(fits=False, missing_bytes=1 << 30, blocking_models=["c"]),
    )
    fits = inferd(server, "load", "a", "--validate-only")
    assert (fits.exit_code, fits.stdout) == (0, "fits after evicting b\n")
    fits_not = inferd(server, "load", "a", "--validate-only")
    assert (fits_not.exit_code, fits_not.stdout) == (5, "does not fit: 1.00 GiB missing; in the way: c\n")


def test_watch_writes_a_line_for_every_change(server: WireServer) -> None:
    watched = model_service_pb2.WatchModelsResponse
    server.script(
        "WatchModels",
        [
            watched(snapshot=watched.Snapshot(models=[wire_server.model("a"), wire_server.model("b", "QUEUED")])),
            watched(changed=wire_server.model("b", "LOADING", load_progress=0.5)),
            watched(removed_name="a"),
        ],
    )
    assert inferd(server, "watch").stdout.splitlines() == ["a\tloaded", "b\tqueued", "b\tloading\t50%", "a\tremoved"]
    events = [json.loads(line) for line in inferd(server, "watch", "--json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["snapshot", "changed", "removed"]


def test_cancel_tells_whether_there_was_something(server: WireServer) -> None:
    response = inference_service_pb2.CancelGenerationResponse
    server.script("CancelGeneration", response(cancelled=True), response())
    assert inferd(server, "cancel", "r1").stdout == "cancelled\n"
    assert inferd(server, "cancel", "r1").stdout == "nothing to cancel\n"


def test_the_exit_code_of_health_is_for_containers(server: WireServer, unused_tcp_port: int) -> None:
    unknown = Refusal(Code.NOT_FOUND, message="unknown service")
    server.script("Check", wire_server.health("SERVING"), wire_server.health("NOT_SERVING"), unknown)
    healthy = inferd(server, "health")
    assert (healthy.exit_code, healthy.stdout) == (0, "serving\n")
    assert server.calls[0].request.service == "readiness"
    assert inferd(server, "health", "liveness").exit_code == 1
    assert inferd(server, "health", "nosuch").exit_code == 1
    assert inferd(f"127.0.0.1:{unused_tcp_port}", "health").exit_code == 2
    server.script("Check", unknown, wire_server.health("SERVING"))
    assert inferd(server, "health", "tiny").exit_code == 0
    assert [call.request.service for call in server.calls[-2:]] == ["tiny", "inferd.v1.Model/tiny"]
    server.script("Check", wire_server.FOREVER)
    assert inferd(server, "health", "--timeout", "0.1").exit_code == 2


def _entry_points(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint("server", value, "inferd.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])
    cli._server_commands.cache_clear()


@pytest.fixture
def _fresh_server_commands() -> Any:
    yield
    cli._server_commands.cache_clear()


demo_commands = typer.Typer()


@demo_commands.command()
def serve(port: int = 0) -> None:
    """Serve."""
    print(f"serving {port}")


@pytest.mark.usefixtures("_fresh_server_commands")
def test_the_servers_commands_join_when_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry_points(monkeypatch, f"{__name__}:demo_commands")
    assert inferd("127.0.0.1:1", "serve", "--port", "7").stdout == "serving 7\n"
    shown = inferd("127.0.0.1:1", "--help")
    assert shown.exit_code == 0
    assert "generate" in shown.stdout
    assert "serve" in shown.stdout


@pytest.mark.usefixtures("_fresh_server_commands")
def test_without_the_server_its_commands_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry_points(monkeypatch, "no_such_module_of_inferd:commands")
    done = inferd("127.0.0.1:1", "serve")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "inferd[server]" in done.stderr
    assert inferd("127.0.0.1:1", "--help").exit_code == 0
    assert inferd("127.0.0.1:1").exit_code == 0


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_files_of_images_come_before_the_question(command: str, server: WireServer, tmp_path: Path) -> None:
    for name, data in (("a", b"\x89PNG"), ("b", b"\xff\xd8\xff")):
        (tmp_path / name).write_bytes(data)
    server.script("StreamGenerate", answer("two"))
    options = ("--image", str(tmp_path / "a"), "--image", str(tmp_path / "b"))
    done = inferd(server, command, "tiny", "How many?", *options)
    assert (done.exit_code, done.stdout) == (0, "two\n")
    (message,) = server.calls[0].request.chat.messages
    assert message.role == generation_pb2.ROLE_USER
    assert [part.image.data or part.text for part in message.parts] == [b"\x89PNG", b"\xff\xd8\xff", "How many?"]


def test_a_file_that_is_not_there_is_told_before_anything_is_sent(server: WireServer, tmp_path: Path) -> None:
    done = inferd(server, "chat", "tiny", "x", "--image", str(tmp_path / "none"))
    assert done.exit_code == 2
    problem = f"--image {tmp_path / 'none'}: No such file or directory"
    assert done.stderr == f"error: Invalid value: {problem} (`inferd chat --help` shows how)\n"
    assert not server.calls
