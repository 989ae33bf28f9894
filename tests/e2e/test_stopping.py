"""SIGTERM, in the order of docs/semantics.md §9: readiness, lame duck, drain, cut, watches, exit."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support.calls import NOT_SERVING, SERVING, Answer, Peer, endless, failure_of, read, read_until, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.wire import error_details, facts_of, reason_of

FAULTY = ("-m", "fakes.faulty_server")
TESTS = str(Path(__file__).parents[1])

Start = Callable[..., AbstractContextManager[ServerProcess]]


@pytest.fixture
def start(tmp_path: Path, endless_model: Path) -> Start:
    """Starts a server of its own: `one` decodes one request at a time, `many` together."""

    @contextmanager
    def started(*, more: tuple[dict[str, Any], ...] = (), **settings: Any) -> Iterator[ServerProcess]:
        models = [
            {"name": "one", "path": endless_model, "preload": True, "continuous_batching": False},
            {"name": "many", "path": endless_model, "preload": not more},
            *more,
        ]
        config = write_config(tmp_path, models, budget_gb=1, server=settings)
        with serving(config, program=FAULTY, PYTHONPATH=TESTS, INFERD_TEST_LOAD_SECONDS="30") as server:
            yield server

    return started


def check_exit(server: ServerProcess, seconds: float) -> None:
    """It exits with 0 by itself within `seconds`, and without a word of trouble."""
    began = time.monotonic()
    assert server.wait(seconds) == 0
    print(f"exit after {time.monotonic() - began:.2f} s")
    assert not [line for line in server.log if "Traceback" in line or "[error" in line], server.log


async def test_running_streams_finish_within_the_drain_and_queued_ones_are_told(start: Start) -> None:
    with start(drain_timeout_s=30) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            wanted = {"prompt": "x", "max_tokens": 800, "ignore_eos": True, "return_ids": True}
            expected = await peer.inference.Generate(unary("one", **wanted))
            running = peer.inference.StreamGenerate(streamed("one", **wanted))
            answer = await read_until(running, "delta")
            queued = peer.inference.StreamGenerate(streamed("one", **wanted))
            await peer.wait_for_model("one", lambda model: model.waiting_requests == 1)
            server.signal()
            error = (await read(queued)).failure
            assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
            assert error_details(error)["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0
            assert facts_of(error) == {}
            for call in (
                peer.inference.Generate(unary("many", prompt="x")),
                peer.inference.Embed(inf.EmbedRequest(model="many", texts=["x"])),
                peer.inference.Tokenize(inf.TokenizeRequest(model="many", prompt="x")),
                peer.models.LoadModel(mod.LoadModelRequest(name="many")),
                peer.models.UnloadModel(mod.UnloadModelRequest(name="many")),
            ):
                assert reason_of(await failure_of(call)) == "SERVER_DRAINING"
            info = await peer.inference.GetServerInfo(inf.GetServerInfoRequest())
            assert info.draining
            for name, status in (("", SERVING), ("liveness", SERVING), ("readiness", NOT_SERVING)):
                assert await peer.check(name) == status
            for name in ("inferd.v1.InferenceService", "inferd.v1.ModelService", "inferd.v1.Model/one"):
                assert await peer.check(name) == NOT_SERVING
            await read(running, answer)
            assert answer.end.usage.completion_tokens == 800
            assert answer.token_ids == list(expected.token_ids)
        check_exit(server, 10)


async def test_what_still_runs_at_the_end_of_the_drain_is_cut_with_its_counts(start: Start) -> None:
    with start(drain_timeout_s=0.5) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            streams = [peer.inference.StreamGenerate(endless("many", request_id=f"r{number}")) for number in range(4)]
            answers = [await read_until(stream, "delta") for stream in streams]
            whole = asyncio.ensure_future(
                failure_of(peer.inference.Generate(unary("many", prompt="x", ignore_eos=True, max_tokens=10**6)))
            )
            await peer.wait_for_model("many", lambda model: model.running_requests == 5)
            server.signal()
            began = time.monotonic()
            for number, (stream, answer) in enumerate(zip(streams, answers, strict=True)):
                error = (await read(stream, answer)).failure
                assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTDOWN")
                facts = facts_of(error)
                assert set(facts) == {"completion_tokens", "last_sequence", "request_id"}
                assert (facts["request_id"], facts["last_sequence"]) == (f"r{number}", str(answer.last_sequence))
                assert 0 <= int(facts["completion_tokens"]) - answer.deltas[-1].completion_tokens < 4
            assert reason_of(await whole) == "SERVER_SHUTDOWN"
            assert 0.4 < time.monotonic() - began < 20
        check_exit(server, 10)


async def test_readiness_goes_first_while_everything_is_still_served(start: Start) -> None:
    with start(drain_delay_s=4, drain_timeout_s=30) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            assert await peer.check("readiness") == SERVING
            server.signal()
            began = time.monotonic()
            while await peer.check("readiness") == SERVING:
                assert time.monotonic() - began < 3
            assert await peer.check("inferd.v1.InferenceService") == NOT_SERVING
            assert await peer.check("liveness") == SERVING
            answers = 0
            while time.monotonic() - began < 1:
                answer = await peer.inference.Generate(unary("many", prompt="x", max_tokens=5, ignore_eos=True))
                assert answer.usage.completion_tokens == 5
                answers += 1
            assert answers > 0
            running = peer.inference.StreamGenerate(streamed("many", prompt="x", ignore_eos=True, max_tokens=600))
            answer = await read_until(running, "started")
            await read(running, answer)
            assert answer.end.usage.completion_tokens == 600
        check_exit(server, 10)


async def test_open_watches_do_not_hold_the_stop(start: Start) -> None:
    with start() as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            health = peer.health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
            unknown = peer.health.Watch(health_pb2.HealthCheckRequest(service="nothing"))
            models = peer.models.WatchModels(mod.WatchModelsRequest())
            assert (await health.read()).status == SERVING
            assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            assert (await models.read()).WhichOneof("event") == "snapshot"
            began = time.monotonic()
            server.signal()
            assert (await health.read()).status == NOT_SERVING
            for watch in (health, unknown, models):
                while await failure_or_message(watch) is None:
                    pass
                assert watch.done()
                assert await watch.code() is grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - began < 20
        check_exit(server, 20)


async def failure_or_message(watch: Any) -> grpc.aio.AioRpcError | None:
    try:
        message = await watch.read()
    except grpc.aio.AioRpcError as error:
        return error
    assert message is not grpc.aio.EOF, "it ended with OK"
    return None


async def test_a_slow_reader_does_not_hold_the_stop(start: Start) -> None:
    with start(drain_timeout_s=0.5) as server:
        server.wait_until_ready()
        slow = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(server.address, options=slow) as channel, Peer(server.address) as peer:
            call = channel.unary_stream(
                "/inferd.v1.InferenceService/StreamGenerate",
                request_serializer=lambda message: message.SerializeToString(),
            )(endless("many", top_logprobs=20))
            await call.read()
            await peer.wait_for_model("many", lambda model: model.running_requests == 1)
            await asyncio.sleep(1)
            server.signal()
            await asyncio.to_thread(check_exit, server, 10)


async def test_a_sigterm_while_loading_ends_the_load_and_the_server(start: Start, endless_model: Path) -> None:
    loading = {"name": "slow-load", "path": endless_model, "preload": True}
    with start(more=(loading,), drain_delay_s=20) as server:
        async with Peer(server.address) as peer:
            await peer.wait_for_model("slow-load", lambda model: model.state == mod.MODEL_STATE_LOADING)
            assert await peer.check("readiness") == NOT_SERVING
            error = await failure_of(peer.inference.Generate(unary("one", prompt="x")))
            assert reason_of(error) == "SERVER_STARTING"
            watch = peer.models.WatchModels(mod.WatchModelsRequest())
            await watch.read()
            server.signal()
            await asyncio.to_thread(check_exit, server, 10)  # no drain delay: nobody was ever sent here
            assert not [line for line in server.log if "] ready" in line]


async def test_a_sigterm_while_a_request_waits_for_its_load_answers_it(start: Start, endless_model: Path) -> None:
    with start(more=({"name": "slow-load", "path": endless_model},)) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            waiting = peer.inference.StreamGenerate(streamed("slow-load", prompt="x", waiting_events=True))
            load = asyncio.ensure_future(failure_of(peer.models.LoadModel(mod.LoadModelRequest(name="slow-load"))))
            answer = Answer()
            await read_until(waiting, "waiting", answer)
            await peer.wait_for_model("slow-load", lambda model: model.state == mod.MODEL_STATE_LOADING)
            server.signal()
            assert reason_of((await read(waiting, answer)).failure) == "SERVER_DRAINING"
            assert reason_of(await load) == "SERVER_DRAINING"
            await asyncio.to_thread(check_exit, server, 10)


async def test_a_second_signal_exits_at_once(start: Start) -> None:
    with start(drain_timeout_s=60) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            stream = peer.inference.StreamGenerate(endless("many"))
            await read_until(stream, "delta")
            server.signal()
            await asyncio.to_thread(server.wait_for_log, "stopping")
            assert (await peer.model("many")).running_requests == 1
            began = time.monotonic()
            server.signal(signal.SIGINT)
            assert await asyncio.to_thread(server.wait, 20) == 128 + signal.SIGINT
            assert time.monotonic() - began < 20  # of the 60 that the stream may take


def test_an_idle_server_stops_at_once(start: Start) -> None:
    with start() as server:
        server.wait_until_ready()
        began = time.monotonic()
        server.signal(signal.SIGINT)
        check_exit(server, 10)
        assert time.monotonic() - began < 8
