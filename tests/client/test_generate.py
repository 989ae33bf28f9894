"""Generations through both clients: what is sent, what comes back, and how a stream ends."""

import asyncio
import inspect
import threading
from typing import Any

import grpc
import pytest

from fakes.wire_server import FOREVER, Pause, Refusal, WireServer, answer, delta, finished, started, waiting
from inferd.v1 import generation_pb2, inference_service_pb2
from inferd_client import (
    AsyncClient,
    AsyncGenerationStream,
    AsyncStream,
    Cancelled,
    Client,
    Delta,
    EngineFailed,
    Finished,
    GenerationStream,
    InferdError,
    InvalidParameter,
    Preempted,
    Started,
    Stream,
    Unavailable,
    Waiting,
)
from support.both_ways import BothWays


async def test_a_generation_comes_back_whole(server: WireServer, client: BothWays) -> None:
    server.script(
        "Generate",
        inference_service_pb2.GenerateResponse(
            request_id="r",
            model=generation_pb2.ServedModel(name="tiny", revision="v", load_generation=2),
            text="Paris",
            token_ids=[1, 2],
            logprobs=[
                generation_pb2.TokenLogprob(
                    token_id=1, logprob=-0.5, top=[generation_pb2.TopLogprob(token_id=7, logprob=-1.0)]
                )
            ],
            tool_calls=[generation_pb2.ToolCall(id="c", name="f", arguments_json="{}")],
            finish_reason=generation_pb2.FINISH_REASON_STOP,
            matched_stop="\n",
            usage=generation_pb2.Usage(prompt_tokens=5, cached_prompt_tokens=4, completion_tokens=2),
            preemptions=1,
        ),
    )
    result = await client.call("generate", "chat-small", "The capital of France is")
    assert (result.request_id, result.text, result.finish_reason, result.matched_stop) == ("r", "Paris", "stop", "\n")
    assert (result.model.name, result.model.revision, result.model.load_generation) == ("tiny", "v", 2)
    assert (result.token_ids, result.preemptions) == ((1, 2), 1)
    assert result.logprobs[0].top == ((7, -1.0),)
    assert (result.tool_calls[0].name, result.usage.cached_prompt_tokens) == ("f", 4)


async def test_a_streamed_answer_is_the_unary_one_in_pieces(server: WireServer, client: BothWays) -> None:
    server.script("StreamGenerate", answer("The capital ", "", "is Paris."))
    events, stream = await client.read("stream", "tiny", messages=[("user", "The capital of France?")])
    assert [type(event) for event in events] == [Started, Delta, Delta, Delta, Finished]
    assert stream.result.text == "The capital is Paris."
    assert (stream.result.finish_reason, stream.result.timing.total_seconds) == ("eos", 1.5)
    assert stream.started.request_id == "r1"


async def test_tool_calls_reasoning_ids_and_logprobs_are_gathered_from_the_deltas(
    server: WireServer, client: BothWays
) -> None:
    part = inference_service_pb2.ToolCallDelta
    first = delta(
        "", 1, reasoning="hm", token_ids=[4], tool_calls=[part(index=0, id="a", name="f", arguments_json="{")]
    )
    second = delta("", 2, reasoning="!", token_ids=[5], tool_calls=[part(index=0, arguments_json="}")])
    third = delta("", 3, tool_calls=[part(index=1, id="b", name="g", arguments_json="[]")])
    server.script("StreamGenerate", [started(), first, second, third, finished("TOOL_CALLS")])
    _, stream = await client.read("stream", "tiny", "x", return_token_ids=True)
    result = stream.result
    assert [(call.id, call.name, call.arguments_json) for call in result.tool_calls] == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]
    assert (result.reasoning, result.token_ids, result.finish_reason) == ("hm!", (4, 5), "tool_calls")


async def test_waiting_is_told_when_asked_for(server: WireServer, client: BothWays) -> None:
    server.script("StreamGenerate", [waiting("LOADING", 2, 0.5), *answer("x")])
    events, _ = await client.read("stream", "tiny", "x", waiting_events=True)
    assert events[0] == Waiting("loading", 2, 0.5)
    assert server.calls[0].request.stream.waiting_events


async def test_an_event_of_a_newer_server_is_passed_over(server: WireServer, client: BothWays) -> None:
    server.script("StreamGenerate", [started(), inference_service_pb2.StreamGenerateResponse(sequence=1), finished()])
    events, _ = await client.read("stream", "tiny", "x")
    assert [type(event) for event in events] == [Started, Finished]


async def test_a_stream_that_ends_without_its_last_message_is_an_error(server: WireServer, client: BothWays) -> None:
    server.script("StreamGenerate", [started(), delta("half")])
    with pytest.raises(EngineFailed, match="without its last message"):
        await client.read("stream", "tiny", "x")


async def test_an_error_in_mid_stream_comes_after_the_text_before_it(server: WireServer) -> None:
    refusal = Refusal(grpc.StatusCode.ABORTED, "PREEMPTED", "interrupted", {"completion_tokens": "1"}, 2.0)
    server.script("StreamGenerate", [started(), delta("one"), refusal])
    async with AsyncClient(server.address) as client, client.stream("tiny", "x") as stream:
        texts = stream.text()
        assert await anext(texts) == "one"
        with pytest.raises(Preempted) as caught:
            await anext(texts)
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.result
    assert caught.value.metadata == {"completion_tokens": "1"}
    assert caught.value.retry_after == 2.0


async def test_leaving_an_async_stream_cancels_it_on_the_server(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), delta("one"), FOREVER])
    async with AsyncClient(server.address) as client:
        async with client.stream("tiny", "x") as stream:
            async for _text in stream.text():
                break
            assert not server.calls[0].ended.is_set()
        assert await asyncio.to_thread(server.calls[0].ended.wait, 10)
    assert server.calls[0].was_cancelled


def test_leaving_a_blocking_stream_cancels_it_on_the_server(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), delta("one"), FOREVER])
    with Client(server.address) as client:
        with client.stream("tiny", "x") as stream:
            for _text in stream.text():
                break
            assert not server.calls[0].ended.is_set()
        assert server.calls[0].ended.wait(10)
    assert server.calls[0].was_cancelled


def test_an_exception_in_the_block_cancels_the_stream_and_goes_on(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), FOREVER])

    def fail_in_the_block(client: Client) -> None:
        with client.stream("tiny", "x") as stream:
            next(stream)
            raise KeyError

    with Client(server.address) as client:
        with pytest.raises(KeyError):
            fail_in_the_block(client)
        assert server.calls[0].ended.wait(10)


async def test_cancelling_the_task_cancels_a_unary_call_on_the_server(server: WireServer) -> None:
    server.script("Generate", FOREVER)
    async with AsyncClient(server.address) as client:
        task = asyncio.create_task(client.generate("tiny", "x"))
        call = await asyncio.to_thread(server.last, "Generate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(call.ended.wait, 10)
    assert call.was_cancelled


async def test_cancelling_the_reading_task_is_a_cancelled_task_and_cancels_the_call(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), FOREVER])

    async def read(client: AsyncClient) -> None:
        async with client.stream("tiny", "x") as stream:
            async for _event in stream:
                pass

    async with AsyncClient(server.address) as client:
        task = asyncio.create_task(read(client))
        call = await asyncio.to_thread(server.last, "StreamGenerate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(call.ended.wait, 10)


async def test_a_stream_cancelled_by_another_task_ends_its_reader_with_an_error_not_a_cancelled_task(
    server: WireServer,
) -> None:
    server.script("StreamGenerate", [started(), FOREVER])
    async with AsyncClient(server.address) as client, client.stream("tiny", "x") as stream:
        await anext(stream)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(Cancelled):
            await reader


def test_a_stream_cancelled_by_another_thread_ends_its_reader(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), FOREVER])
    with Client(server.address) as client, client.stream("tiny", "x") as stream:
        next(stream)
        threading.Timer(0.05, stream.cancel).start()
        with pytest.raises(Cancelled):
            next(stream)


async def test_closing_the_client_ends_open_calls_with_an_error(server: WireServer) -> None:
    server.script("Generate", FOREVER)
    client = AsyncClient(server.address)
    call = asyncio.create_task(client.generate("tiny", "x"))
    await asyncio.to_thread(server.last, "Generate")
    await client.close()
    with pytest.raises(Cancelled):
        await call


async def test_a_request_cancelled_by_its_id_ends_with_the_reason(server: WireServer, client: BothWays) -> None:
    refusal = Refusal(grpc.StatusCode.CANCELLED, "CANCELLED_BY_REQUEST", "cancelled by CancelGeneration")
    server.script("StreamGenerate", [started(), refusal])
    server.script("Generate", refusal)
    for method, call in (("stream", client.read), ("generate", client.call)):
        with pytest.raises(Cancelled) as caught:
            await call(method, "tiny", "x")
        assert caught.value.reason == "CANCELLED_BY_REQUEST"


async def test_only_unavailable_is_retried_and_only_before_the_first_message(
    server: WireServer, client: BothWays
) -> None:
    starting = Refusal(grpc.StatusCode.UNAVAILABLE, "SERVER_STARTING", "starting", retry_seconds=1)
    server.script("StreamGenerate", [starting], [starting], answer("x"))
    await client.read("stream", "tiny", "x")
    assert server.count("StreamGenerate") == 3

    server.calls.clear()
    server.script("StreamGenerate", [started(), Refusal(grpc.StatusCode.UNAVAILABLE, "SERVER_SHUTDOWN")], answer("x"))
    with pytest.raises(Unavailable):
        await client.read("stream", "tiny", "x")
    assert server.count("StreamGenerate") == 1

    server.calls.clear()
    server.script("Generate", Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"))
    with pytest.raises(InferdError):
        await client.call("generate", "tiny", "x")
    assert server.count("Generate") == 1


async def test_a_load_is_not_retried_by_itself(server: WireServer, client: BothWays) -> None:
    server.script("LoadModel", Refusal(grpc.StatusCode.UNAVAILABLE, "LOAD_TIMEOUT"))
    with pytest.raises(Unavailable):
        await client.call("load", "tiny")
    assert server.count("LoadModel") == 1


async def test_a_timeout_is_the_calls_deadline(server: WireServer, client: BothWays) -> None:
    server.script("Generate", Pause(30))
    server.script("StreamGenerate", [started(), Pause(30)])
    for method, call in (("generate", client.call), ("stream", client.read)):
        with pytest.raises(InferdError) as caught:
            await call(method, "tiny", "x", timeout=0.2)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_nothing_but_look_ups_has_a_time_limit_by_itself(server: WireServer, client: BothWays) -> None:
    server.script("Generate", inference_service_pb2.GenerateResponse())
    server.script("Tokenize", inference_service_pb2.TokenizeResponse(count=3))
    await client.call("generate", "tiny", "x")
    await client.call("tokenize", "tiny", "x")
    unlimited, limited = server.calls
    assert unlimited.deadline_seconds is None or unlimited.deadline_seconds > 3600
    assert limited.deadline_seconds is not None
    assert limited.deadline_seconds == pytest.approx(10, abs=1)


async def test_a_stream_must_be_entered(server: WireServer, client: BothWays) -> None:
    stream = client.client.stream("tiny", "x")
    with pytest.raises(RuntimeError, match="enter the stream first"):
        await anext(stream) if isinstance(stream, AsyncStream) else next(stream)


async def test_a_stream_is_entered_once(server: WireServer, client: BothWays) -> None:
    server.script("StreamGenerate", answer("x"))
    _, stream = await client.read("stream", "tiny", "x")
    with pytest.raises(RuntimeError, match="entered once"):
        await stream.__aenter__() if isinstance(stream, AsyncStream) else stream.__enter__()


async def test_reading_on_after_the_end_or_an_error_tells_the_same_again(server: WireServer) -> None:
    server.script("StreamGenerate", answer("x"), [started(), Refusal(grpc.StatusCode.ABORTED, "PREEMPTED")])
    async with AsyncClient(server.address) as client, client.stream("tiny", "x") as stream:
        assert len([event async for event in stream]) == 3
        assert [event async for event in stream] == []
        async with client.stream("tiny", "x") as failing:
            await anext(failing)
            for _ in range(2):
                with pytest.raises(Preempted):
                    await anext(failing)


async def test_a_timeout_of_asyncio_is_a_timeout_and_cancels_the_call(server: WireServer) -> None:
    server.script("StreamGenerate", [started(), FOREVER])
    async with AsyncClient(server.address) as client, client.stream("tiny", "x") as stream:
        await anext(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
        assert await asyncio.to_thread(server.calls[0].ended.wait, 10)


async def test_a_bad_option_is_refused_before_anything_is_sent(server: WireServer, client: BothWays) -> None:
    with pytest.raises(InvalidParameter, match="max_tokens"):
        await client.call("generate", "tiny", "x", max_tokens=-1)
    with pytest.raises(TypeError, match="temprature"):
        await client.call("generate", "tiny", "x", temprature=0.5)
    assert server.calls == []


def _public(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    methods = {
        name: method for name, method in inspect.getmembers(kind) if not name.startswith("_") and callable(method)
    }
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
        for name, method in methods.items()
    }


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    assert _public(AsyncClient) == _public(Client)
    assert _public(AsyncStream) == _public(Stream)
    assert _public(AsyncGenerationStream) == _public(GenerationStream)
    assert inspect.signature(AsyncClient).parameters.keys() == inspect.signature(Client).parameters.keys()


def test_the_snippet_of_the_readme_works(server: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.script("StreamGenerate", answer("Paris", "."))
    with Client(server.address) as client:  # noqa: SIM117  # as in the README
        with client.stream("smollm2", messages=[("user", "What is the capital of France?")]) as answered:
            for text in answered.text():
                print(text, end="", flush=True)
    assert capsys.readouterr().out == "Paris."
