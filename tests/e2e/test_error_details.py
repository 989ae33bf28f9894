"""The table of docs/semantics.md §8, row by row: code, reason, details and facts, as a client sees them."""

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import model_service_pb2 as mod
from support import tiny_llama
from support.calls import Peer, endless, failure_of, read, read_until, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.wire import error_details, facts_of, reason_of, trailers_nbytes

TESTS = str(Path(__file__).parents[1])
CODE = grpc.StatusCode
STREAM_FACTS = {"completion_tokens", "last_sequence", "request_id"}


def truncated(folder: Path, source: Path) -> Path:
    shutil.copytree(source, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return folder


def reconfigured(folder: Path, source: Path, **changes: Any) -> Path:
    shutil.copytree(source, folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Iterator[ServerProcess]:
    """Room for one of `one`, `other` and `pinned`; the rest of the models are broken, each in its own way."""
    folder = tmp_path_factory.mktemp("details")
    healthy = [{"name": name, "path": endless_model, "estimated_memory_gb": 0.6} for name in ("one", "other")]
    small = {"estimated_memory_gb": 0.001}
    broken = {
        "truncated": truncated(folder / "truncated", endless_model),
        "unknown": reconfigured(folder / "unknown", endless_model, model_type="no_such_architecture"),
        "untrusted": reconfigured(folder / "untrusted", endless_model, auto_map={"AutoModel": "evil.Model"}),
        "broken-warmup": endless_model,
        "stuck-load": endless_model,
    }
    # Larger than the room that its statement leaves it.
    understated = tiny_llama.build(folder / "understated", layers=4, hidden=256)
    models = [
        *healthy,
        *({"name": name, "path": path, **small} for name, path in broken.items()),
        {"name": "understated", "path": understated, **small},
    ]
    stuck = folder / "stuck"
    stuck.touch()
    config = write_config(folder, models, budget_gb=1.0, server={"drain_timeout_s": 1}, manager={"load_timeout_s": 1.5})
    with serving(
        config, program=("-m", "fakes.faulty_server"), PYTHONPATH=TESTS, INFERD_TEST_STUCK=str(stuck)
    ) as started:
        started.wait_until_ready()
        yield started
        stuck.unlink()


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as connection:
        yield connection


def check(
    error: grpc.aio.AioRpcError, code: grpc.StatusCode, reason: str, types: set[str], facts: set[str]
) -> dict[str, str]:
    """The row of the table; returns the facts."""
    assert (error.code(), reason_of(error)) == (code, reason)
    assert set(error_details(error)) == {"ErrorInfo", *types}
    assert set(facts_of(error)) == facts
    assert trailers_nbytes(error) < 6 * 1024
    assert "/tmp" not in (error.details() or ""), "no path of the server"
    return facts_of(error)


@pytest.fixture
async def busy(peer: Peer) -> AsyncIterator[Any]:
    """A request that runs on `one`."""
    call = peer.inference.StreamGenerate(endless("one", request_id="busy"), timeout=60)
    await read_until(call, "delta")
    yield call
    call.cancel()
    await peer.wait_until_idle("one")


Ask = Callable[[Peer], Awaitable[Any]]

SIMPLE: list[tuple[str, Ask, grpc.StatusCode, str, set[str], set[str]]] = [
    (
        "not resident",
        lambda peer: peer.inference.Generate(unary("other", prompt="x", load_if_needed=False)),
        CODE.FAILED_PRECONDITION,
        "MODEL_NOT_LOADED",
        set(),
        {"model"},
    ),
    (
        "corrupt",
        lambda peer: peer.inference.Generate(unary("truncated", prompt="x")),
        CODE.DATA_LOSS,
        "MODEL_CORRUPT",
        set(),
        {"model", "file"},
    ),
    (
        "unknown architecture",
        lambda peer: peer.models.LoadModel(mod.LoadModelRequest(name="unknown")),
        CODE.FAILED_PRECONDITION,
        "MODEL_UNSUPPORTED",
        set(),
        {"model"},
    ),
    (
        "code that is not trusted",
        lambda peer: peer.models.LoadModel(mod.LoadModelRequest(name="untrusted")),
        CODE.FAILED_PRECONDITION,
        "MODEL_UNSUPPORTED",
        set(),
        {"model"},
    ),
    (
        "a load that fails otherwise",
        lambda peer: peer.inference.Generate(unary("broken-warmup", prompt="x")),
        CODE.INTERNAL,
        "MODEL_LOAD_FAILED",
        set(),
        {"model"},
    ),
    (
        "a load that takes too long",
        lambda peer: peer.models.LoadModel(mod.LoadModelRequest(name="stuck-load")),
        CODE.UNAVAILABLE,
        "LOAD_TIMEOUT",
        {"RetryInfo"},
        {"model", "limit_ms"},
    ),
    (
        "an unknown model",
        lambda peer: peer.models.GetModel(mod.GetModelRequest(name="nothing")),
        CODE.NOT_FOUND,
        "MODEL_NOT_FOUND",
        {"ResourceInfo"},
        {"model", "configured_models"},
    ),
    (
        "a strategy that is not allowed",
        lambda peer: peer.inference.Generate(
            unary("one", prompt="x", contention={"strategy": gen.CONTENTION_STRATEGY_PREEMPT})
        ),
        CODE.PERMISSION_DENIED,
        "STRATEGY_DENIED",
        set(),
        {"strategy", "allowed_strategies"},
    ),
]


@pytest.mark.parametrize(
    ("ask", "code", "reason", "types", "facts"), [row[1:] for row in SIMPLE], ids=[row[0] for row in SIMPLE]
)
async def test_a_refusal_is_as_the_table_says(
    peer: Peer, ask: Ask, code: grpc.StatusCode, reason: str, types: set[str], facts: set[str]
) -> None:
    check(await failure_of(ask(peer)), code, reason, types, facts)


async def test_no_room_and_a_wait_that_is_over(peer: Peer, busy: Any) -> None:
    fail = {"strategy": gen.CONTENTION_STRATEGY_FAIL}
    error = await failure_of(peer.inference.Generate(unary("other", prompt="x", contention=fail)))
    facts = check(
        error,
        CODE.RESOURCE_EXHAUSTED,
        "CAPACITY_EXHAUSTED",
        {"QuotaFailure", "RetryInfo"},
        {"model", "blocking_models", "required_bytes", "charged_bytes", "limit_bytes"},
    )
    # The load that hangs stays charged until its thread has ended.
    assert facts["blocking_models"] in {"one", "one,stuck-load"}
    assert int(facts["required_bytes"]) == round(0.6 * 2**30)
    assert int(facts["limit_bytes"]) == 2**30
    wait = {"strategy": gen.CONTENTION_STRATEGY_WAIT_THEN_FAIL, "wait_timeout": {"nanos": 300_000_000}}
    error = await failure_of(peer.inference.Generate(unary("other", prompt="x", contention=wait)))
    facts = check(
        error,
        CODE.RESOURCE_EXHAUSTED,
        "WAIT_TIMEOUT",
        {"RetryInfo"},
        {"model", "waited_ms", "queue_position"},
    )
    assert 250 <= int(facts["waited_ms"]) < 2000


async def test_a_model_in_use_and_a_pinned_one(peer: Peer, busy: Any) -> None:
    if_idle = mod.UnloadModelRequest(name="one", mode=mod.UNLOAD_MODE_IF_IDLE)
    facts = check(
        await failure_of(peer.models.UnloadModel(if_idle)),
        CODE.FAILED_PRECONDITION,
        "MODEL_BUSY",
        set(),
        {"model", "running"},
    )
    assert facts["running"] == "1"
    drain = mod.UnloadModelRequest(name="one")
    drain.drain_timeout.nanos = 200_000_000
    check(
        await failure_of(peer.models.UnloadModel(drain)),
        CODE.DEADLINE_EXCEEDED,
        "DRAIN_TIMEOUT",
        set(),
        {"model", "running"},
    )
    await peer.models.LoadModel(mod.LoadModelRequest(name="one", pin=True))
    busy.cancel()
    await peer.wait_until_idle("one")
    error = await failure_of(peer.models.UnloadModel(if_idle))
    check(error, CODE.FAILED_PRECONDITION, "MODEL_PINNED", set(), {"model"})
    await peer.models.LoadModel(mod.LoadModelRequest(name="one", pin=False))


async def test_ends_of_a_running_stream(peer: Peer) -> None:
    call = peer.inference.StreamGenerate(endless("one", request_id="mine"))
    answer = await read_until(call, "delta")
    error = await failure_of(peer.inference.Generate(unary("one", prompt="x", request_id="mine")))
    check(error, CODE.ALREADY_EXISTS, "REQUEST_ID_IN_USE", set(), {"request_id"})
    await peer.models.UnloadModel(mod.UnloadModelRequest(name="one", mode=mod.UNLOAD_MODE_FORCE))
    error = (await read(call, answer)).failure
    check(error, CODE.ABORTED, "MODEL_UNLOADED", set(), {"model", *STREAM_FACTS})


async def test_an_engine_that_fails_a_row(peer: Peer) -> None:
    from fakes.faulty_server import ROW_FAILS

    stream = streamed("one", prompt="x", seed=ROW_FAILS, ignore_eos=True, max_tokens=50, request_id="mine")
    error = (await read(peer.inference.StreamGenerate(stream))).failure
    facts = check(error, CODE.INTERNAL, "ENGINE_FAILED", set(), {"model", *STREAM_FACTS})
    assert facts["completion_tokens"] in {"2", "3"}
    assert "scripted" not in (error.details() or "")


async def test_a_model_that_measures_more_than_the_budget(peer: Peer, tmp_path: Path) -> None:
    measured = tiny_llama.build(tmp_path / "measured", layers=4, hidden=256)
    entry = {"name": "measured", "path": measured, "estimated_memory_gb": 0.001}
    with serving(write_config(tmp_path, [entry], budget_gb=0.002)) as small:
        small.wait_until_ready()
        async with Peer(small.address) as connection:
            error = await failure_of(connection.inference.Generate(unary("measured", prompt="x")))
            facts = check(
                error,
                CODE.FAILED_PRECONDITION,
                "MODEL_TOO_LARGE",
                set(),
                {"model", "required_bytes", "limit_bytes"},
            )
            assert int(facts["required_bytes"]) > int(facts["limit_bytes"])
            await connection.wait_for_model("measured", lambda model: model.memory.charged_bytes == 0)
