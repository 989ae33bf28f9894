"""Generate and StreamGenerate over a real socket."""

import asyncio
import time

import grpc
import pytest

from fakes.generations import answer, fail, finished, hang, started
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd_server.core.errors import queue_full, slow_consumer
from inferd_server.core.generation import (
    ChatPrompt,
    Delta,
    Message,
    RawPrompt,
    Role,
    TokenLogprob,
    TokenPrompt,
    Waiting,
    WaitState,
)
from support.rpc_world import World
from support.streams import eventually
from support.wire import error_details, facts_of, reason_of


def stream_request(**fields: object) -> pb.StreamGenerateRequest:
    return pb.StreamGenerateRequest(**{"model": "tiny", "prompt": "hi", **fields})


async def read(
    call: grpc.aio.UnaryStreamCall, received: list[pb.StreamGenerateResponse] | None = None
) -> list[pb.StreamGenerateResponse]:
    """All messages; they land in `received` one by one."""
    messages = [] if received is None else received
    async for message in call:
        messages.append(message)
    return messages


async def test_a_stream_is_started_deltas_finished_with_gapless_sequence_numbers(world: World) -> None:
    messages = await read(world.inference.StreamGenerate(stream_request(request_id="a.b-c_1")))

    assert [m.WhichOneof("event") for m in messages] == ["started", "delta", "delta", "finished"]
    assert [m.sequence for m in messages] == [0, 1, 2, 3]
    assert messages[0].started.request_id == "a.b-c_1"
    assert messages[0].started.model == gen.ServedModel(name="tiny", revision="r1", load_generation=3)
    assert [m.delta.text for m in messages[1:3]] == ["Hello", " world"]
    assert messages[3].finished.finish_reason == gen.FINISH_REASON_EOS
    assert messages[3].finished.usage.completion_tokens == 2
    assert messages[3].finished.timing.queue.ToTimedelta().total_seconds() == 0.5


async def test_the_unary_answer_is_the_stream_put_together(world: World) -> None:
    async def script(request):
        yield Waiting(WaitState.LOADING)
        yield started(request)
        yield Delta("Hel", "thi", [1], [TokenLogprob(1, -0.5, ((1, -0.5), (7, -1.0)))], 1)
        yield Delta("lo", "nk", [2, 3], [TokenLogprob(2, -0.25), TokenLogprob(3, -0.125)], 3)
        yield finished(3)

    world.generations.script = script
    response = await world.inference.Generate(pb.GenerateRequest(model="small", prompt="hi"))

    assert (response.text, response.reasoning) == ("Hello", "think")
    assert list(response.token_ids) == [1, 2, 3]
    assert [(p.token_id, p.logprob) for p in response.logprobs] == [(1, -0.5), (2, -0.25), (3, -0.125)]
    assert [(t.token_id, t.logprob) for t in response.logprobs[0].top] == [(1, -0.5), (7, -1.0)]
    assert response.request_id == "made-up"
    assert response.model.name == "tiny"
    assert response.usage.prompt_tokens == 4


async def test_waiting_events_come_through_as_they_are(world: World) -> None:
    async def script(request):
        yield Waiting(WaitState.QUEUED, queue_position=3)
        yield Waiting(WaitState.LOADING, load_progress=0.5)
        async for event in answer("x")(request):
            yield event

    world.generations.script = script
    request = stream_request(stream=pb.StreamOptions(waiting_events=True, coalesce_ms=0))
    messages = await read(world.inference.StreamGenerate(request))

    assert [m.WhichOneof("event") for m in messages] == ["waiting", "waiting", "started", "delta", "finished"]
    assert messages[0].waiting.queue_position == 3
    assert messages[1].waiting.state == pb.WAIT_STATE_LOADING
    assert messages[1].waiting.load_progress == 0.5
    assert world.generations.requests[0].waiting_events
    assert world.generations.requests[0].coalesce_seconds == 0


async def test_serving_is_given_every_choice(world: World) -> None:
    chat = gen.ChatInput(
        messages=[
            gen.ChatMessage(role=gen.ROLE_SYSTEM, parts=[gen.ContentPart(text="be brief")]),
            gen.ChatMessage(
                role=gen.ROLE_USER, name="ann", parts=[gen.ContentPart(text="a"), gen.ContentPart(text="b")]
            ),
        ],
        template_variables_json='{"enable_thinking": false}',
    )
    request = pb.StreamGenerateRequest(
        model="small",
        chat=chat,
        sampling=gen.SamplingOptions(temperature=0, top_k=5, seed=2**63, logit_bias={7: -1.5}),
        stop=gen.StopOptions(max_tokens=9, sequences=["END"], token_ids=[2], ignore_eos=True),
        output=gen.OutputOptions(token_ids=True, top_logprobs=0),
        scheduling=gen.SchedulingOptions(
            priority=-5, load_if_needed=False, contention=gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_FAIL)
        ),
        session_id="s",
    )
    await read(world.inference.StreamGenerate(request))
    (asked,) = world.generations.requests

    assert asked.prompt == ChatPrompt(
        (Message(Role.SYSTEM, ("be brief",)), Message(Role.USER, ("a", "b"), name="ann")),
        template_variables={"enable_thinking": False},
    )
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.top_p) == (0.0, 5, None)
    assert (asked.sampling.seed, asked.sampling.logit_bias) == (2**63, {7: -1.5})
    assert (asked.stop.max_tokens, asked.stop.sequences, asked.stop.token_ids) == (9, ("END",), (2,))
    assert asked.stop.ignore_eos
    assert (asked.output.token_ids, asked.output.top_logprobs) == (True, 0)
    assert (asked.scheduling.priority, asked.scheduling.load_if_needed) == (-5, False)
    assert asked.scheduling.preemptible
    assert asked.scheduling.contention.strategy == "fail"
    assert asked.scheduling.contention.wait_timeout_seconds == 30
    assert asked.session_id == "s"
    assert asked.coalesce_seconds is None
    assert not asked.waiting_events


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [({"prompt": "hé"}, RawPrompt("hé")), ({"tokens": gen.TokenInput(ids=[1, 999])}, TokenPrompt((1, 999)))],
)
async def test_raw_and_token_prompts_reach_serving(world: World, fields: dict, prompt: object) -> None:
    await world.inference.Generate(pb.GenerateRequest(model="tiny", **fields))
    assert world.generations.requests[0].prompt == prompt


async def test_a_client_deadline_reaches_serving_on_its_clock(world: World) -> None:
    await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"), timeout=50)
    await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
    with_deadline, without = world.generations.deadlines

    assert with_deadline is not None
    assert 40 < with_deadline - time.monotonic() < 51  # grpc rounds up
    assert without is None


async def test_an_error_before_the_start_has_its_status_and_details(world: World) -> None:
    world.generations.script = fail(queue_full("tiny", 7))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(world.inference.StreamGenerate(stream_request()))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(caught.value) == "QUEUE_FULL"
    assert facts_of(caught.value) == {"model": "tiny", "queue_limit": "7"}
    assert error_details(caught.value)["RetryInfo"].retry_delay.seconds == 1


async def test_an_aborted_stream_names_the_last_sequence_number_that_was_sent(world: World) -> None:
    world.generations.script = fail(slow_consumer(9), after=2)
    received: list[pb.StreamGenerateResponse] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(world.inference.StreamGenerate(stream_request()), received)

    assert [message.sequence for message in received] == [0, 1, 2]
    counts = {"request_id": "made-up", "completion_tokens": "2", "last_sequence": "2"}
    assert facts_of(caught.value) == {"limit_tokens": "9", **counts}


async def test_an_aborted_unary_call_has_no_sequence(world: World) -> None:
    world.generations.script = fail(slow_consumer(9), after=2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
    counts = {"request_id": "made-up", "completion_tokens": "2"}
    assert facts_of(caught.value) == {"limit_tokens": "9", **counts}


@pytest.mark.parametrize("after", [None, 0, 2])
async def test_an_unexpected_exception_shows_none_of_its_text(
    world: World, after: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    world.generations.script = fail(ValueError("secret path"), after=after)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(world.inference.StreamGenerate(stream_request(request_id="r-1")))

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert reason_of(caught.value) == "ENGINE_FAILED"
    assert "secret" not in str(caught.value)
    (record,) = [r for r in caplog.records if r.name == "inferd.rpc"]
    assert record.request_id == "r-1"
    assert "secret path" in str(record.exc_info[1])


class PanicException(BaseException):
    """As a Rust library raises it."""


@pytest.mark.parametrize("after", [None, 2])
async def test_a_panic_of_a_library_ends_its_own_call_and_shows_none_of_its_text(
    world: World, after: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    world.generations.script = fail(PanicException("byte 3 of 'secret' is no boundary"), after=after)
    for call in (
        read(world.inference.StreamGenerate(stream_request(), timeout=10)),
        world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"), timeout=10),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert (caught.value.code(), reason_of(caught.value)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    assert world.generations.clean_ends == 2
    assert "secret" not in caplog.text
    assert all("generations.py" in record.stack for record in caplog.records if record.name == "inferd.rpc")
    world.generations.script = answer("fine")
    await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))


async def test_a_cancelled_stream_is_closed_at_once(world: World) -> None:
    world.generations.script = hang
    call = world.inference.StreamGenerate(stream_request())
    await call.read()
    assert world.generations.open == 1
    call.cancel()
    await eventually(lambda: world.generations.ends == 1)


async def test_a_cancelled_unary_call_closes_its_stream(world: World) -> None:
    world.generations.script = hang
    call = world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="x"))
    task = asyncio.ensure_future(call)
    await eventually(lambda: world.generations.open == 1)
    call.cancel()
    await eventually(lambda: world.generations.ends == 1)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_ends_the_stream_on_both_sides(world: World) -> None:
    world.generations.script = hang
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(world.inference.StreamGenerate(stream_request(), timeout=0.1))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: world.generations.ends == 1)


async def test_two_hundred_random_cancels_leave_nothing_open(world: World) -> None:
    world.generations.script = answer(*"abcdefghij")

    async def one(index: int) -> None:
        call = world.inference.StreamGenerate(stream_request())
        for _ in range(index % 7):
            await call.read()
        call.cancel()

    for start in range(0, 200, 50):
        await asyncio.gather(*(one(i) for i in range(start, start + 50)))
    await eventually(lambda: world.generations.open == 0)


async def test_tokenize_counts_and_gives_ids_when_asked(world: World) -> None:
    counted = await world.inference.Tokenize(pb.TokenizeRequest(model="small", prompt="abc"))
    listed = await world.inference.Tokenize(pb.TokenizeRequest(model="tiny", prompt="", return_ids=True))

    assert (counted.count, list(counted.token_ids), counted.context_length) == (3, [], 128)
    assert list(listed.token_ids) == [1, 2, 3]
    assert world.generations.tokenized == [("tiny", RawPrompt("abc")), ("tiny", RawPrompt(""))]


async def test_cancelling_an_id_says_whether_something_was_cancelled(world: World) -> None:
    world.generations.known_ids = {"here"}
    assert (await world.inference.CancelGeneration(pb.CancelGenerationRequest(request_id="here"))).cancelled
    assert not (await world.inference.CancelGeneration(pb.CancelGenerationRequest(request_id="gone"))).cancelled


async def test_server_info_tells_limits_and_defaults(world: World) -> None:
    info = await world.inference.GetServerInfo(pb.GetServerInfoRequest())

    assert (info.server_version, info.mlx_version, info.device) == ("0.1.0", "0.32.4", "cpu")
    assert info.start_time.ToNanoseconds() == 1_700_000_000_500_000_000
    assert info.default_contention.strategy == gen.CONTENTION_STRATEGY_WAIT_THEN_FAIL
    assert info.default_contention.wait_timeout.seconds == 30
    assert list(info.allowed_contention_strategies) == [
        gen.CONTENTION_STRATEGY_FAIL,
        gen.CONTENTION_STRATEGY_WAIT,
        gen.CONTENTION_STRATEGY_WAIT_THEN_FAIL,
    ]
    assert (info.max_message_bytes, info.max_queue_length, info.draining) == (16 * 2**20, 1024, False)
    assert info.image_limits == pb.ImageLimits(
        max_images=16, max_image_bytes=20 * 2**20, max_image_pixels=16_777_216, max_request_pixels=33_554_432
    )
