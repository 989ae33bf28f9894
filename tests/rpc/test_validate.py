"""Bad requests over a real socket: all violations at once, and the next request works."""

import math

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from fakes.registry import entry
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd_server.core.generation import ChatPrompt, Tool, ToolCall
from inferd_server.core.model import Capability
from support.rpc_world import World
from support.wire import facts_of, fields_of, reason_of

NAN, INF = math.nan, math.inf


async def refused(world: World, **fields: object) -> grpc.aio.AioRpcError:
    """What StreamGenerate answers; nothing reached serving."""
    request = pb.StreamGenerateRequest(**{"model": "tiny", "prompt": "hi", **fields})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.StreamGenerate(request).read()
    assert world.generations.requests == []
    return caught.value


def sampling(**fields: object) -> dict[str, object]:
    return {"sampling": gen.SamplingOptions(**fields)}


def stop(**fields: object) -> dict[str, object]:
    return {"stop": gen.StopOptions(**fields)}


def output(**fields: object) -> dict[str, object]:
    return {"output": gen.OutputOptions(**fields)}


def policy(**fields: object) -> dict[str, object]:
    return {"scheduling": gen.SchedulingOptions(contention=gen.ContentionPolicy(**fields))}


def constraint(**fields: object) -> dict[str, object]:
    return output(constraint=gen.OutputConstraint(**fields))


BAD = [
    (sampling(temperature=NAN), "sampling.temperature"),
    (sampling(temperature=INF), "sampling.temperature"),
    (sampling(temperature=-0.1), "sampling.temperature"),
    (sampling(temperature=101), "sampling.temperature"),
    (sampling(top_p=0), "sampling.top_p"),
    (sampling(top_p=1.1), "sampling.top_p"),
    (sampling(top_p=NAN), "sampling.top_p"),
    (sampling(top_k=1001), "sampling.top_k"),
    (sampling(min_p=-0.1), "sampling.min_p"),
    (sampling(min_p=1.1), "sampling.min_p"),
    (sampling(repetition_penalty=0), "sampling.repetition_penalty"),
    (sampling(repetition_penalty=INF), "sampling.repetition_penalty"),
    (sampling(repetition_window=0), "sampling.repetition_window"),
    (sampling(repetition_window=8193), "sampling.repetition_window"),
    (sampling(presence_penalty=2.1), "sampling.presence_penalty"),
    (sampling(frequency_penalty=-2.1), "sampling.frequency_penalty"),
    (sampling(logit_bias={5: NAN}), "sampling.logit_bias[5]"),
    (sampling(logit_bias={5: -INF}), "sampling.logit_bias[5]"),
    (sampling(logit_bias={1000: 1.0}), "sampling.logit_bias[1000]"),
    (sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "sampling.logit_bias"),
    (stop(max_tokens=0), "stop.max_tokens"),
    (stop(sequences=["a", "b", "c", ""]), "stop.sequences[3]"),
    (stop(sequences=["x" * 257]), "stop.sequences[0]"),
    (stop(sequences=["x"] * 17), "stop.sequences"),
    (stop(token_ids=[1, 1000]), "stop.token_ids[1]"),
    (stop(token_ids=range(65)), "stop.token_ids"),
    (output(top_logprobs=21), "output.top_logprobs"),
    (constraint(), "output.constraint"),
    (constraint(json_schema="[]"), "output.constraint.json_schema"),
    (constraint(json_schema="{"), "output.constraint.json_schema"),
    (constraint(regex=""), "output.constraint.regex"),
    (constraint(choice=gen.OutputConstraint.Choices()), "output.constraint.choice.options"),
    (constraint(choice=gen.OutputConstraint.Choices(options=["a", ""])), "output.constraint.choice.options[1]"),
    ({**constraint(regex="a"), "stop": gen.StopOptions(ignore_eos=True)}, "stop.ignore_eos"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": None}, "input"),
    ({"prompt": None, "tokens": gen.TokenInput()}, "tokens.ids"),
    ({"prompt": None, "tokens": gen.TokenInput(ids=[1, 1000])}, "tokens.ids[1]"),
    ({"prompt": None, "tokens": gen.TokenInput(ids=[2**32 - 1])}, "tokens.ids[0]"),
    ({"request_id": "with space"}, "request_id"),
    ({"request_id": "x" * 65}, "request_id"),
    ({"request_id": "new\nline"}, "request_id"),
    ({"request_id": "end\n"}, "request_id"),
    ({"session_id": "x" * 257}, "session_id"),
    ({"stream": pb.StreamOptions(coalesce_ms=10_001)}, "stream.coalesce_ms"),
    ({"scheduling": gen.SchedulingOptions(priority=101)}, "scheduling.priority"),
    ({"scheduling": gen.SchedulingOptions(priority=-(2**31))}, "scheduling.priority"),
    (policy(strategy=99), "scheduling.contention.strategy"),
    (policy(wait_timeout=Duration(seconds=-1)), "scheduling.contention.wait_timeout"),
    (policy(wait_timeout=Duration(nanos=-1)), "scheduling.contention.wait_timeout"),
    (policy(wait_timeout=Duration(seconds=1, nanos=-1)), "scheduling.contention.wait_timeout"),
    (policy(wait_timeout=Duration(seconds=31)), "scheduling.contention.wait_timeout"),
    (policy(preempt_after=Duration(seconds=-1)), "scheduling.contention.preempt_after"),
]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=lambda value: value if isinstance(value, str) else None)
async def test_a_bad_field_is_refused_by_its_path(world: World, fields: dict, field: str) -> None:
    error = await refused(world, **fields)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(error) == "INVALID_PARAMETER"
    assert fields_of(error) == [field]
    # and the next request works
    assert (await world.inference.Generate(pb.GenerateRequest(model="tiny", prompt="hi"))).text == "Hello world"


GOOD = [
    sampling(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1, repetition_window=8192),
    sampling(temperature=100, top_p=1e-6, top_k=1000, min_p=1, presence_penalty=-2, frequency_penalty=2),
    sampling(seed=2**64 - 1, logit_bias={0: 1e30, 999: -1e30}),
    stop(max_tokens=2**32 - 1, sequences=["x" * 256] * 16, token_ids=range(64)),
    output(top_logprobs=20),
    {"prompt": "\0 \U0001f600"},
    {"request_id": "A-z_0.9" + "x" * 57},
    {"scheduling": gen.SchedulingOptions(priority=-100)},
    policy(strategy=gen.CONTENTION_STRATEGY_WAIT, wait_timeout=Duration(seconds=30)),
    policy(wait_timeout=Duration()),
]


@pytest.mark.parametrize("fields", GOOD)
async def test_a_value_at_its_limit_is_accepted(world: World, fields: dict) -> None:
    request = pb.StreamGenerateRequest(**{"model": "tiny", "prompt": "hi", **fields})
    assert [m async for m in world.inference.StreamGenerate(request)][-1].WhichOneof("event") == "finished"


async def test_all_violations_come_at_once(world: World) -> None:
    error = await refused(
        world,
        prompt="",
        request_id="?",
        **sampling(temperature=NAN, top_p=2, logit_bias={1: INF}),
        **stop(max_tokens=0, sequences=[""]),
        **output(top_logprobs=99),
        scheduling=gen.SchedulingOptions(priority=1000),
    )
    assert fields_of(error) == [
        "request_id",
        "prompt",
        "sampling.temperature",
        "sampling.top_p",
        "sampling.logit_bias[1]",
        "stop.max_tokens",
        "stop.sequences[0]",
        "output.top_logprobs",
        "scheduling.priority",
    ]
    assert facts_of(error)["violations"] == "9"


async def test_many_violations_are_listed_up_to_sixteen_with_their_number(world: World) -> None:
    error = await refused(world, prompt=None, tokens=gen.TokenInput(ids=[1000] * 100))
    assert fields_of(error) == [f"tokens.ids[{i}]" for i in range(16)]
    assert facts_of(error)["violations"] == "65"


async def test_too_many_token_ids_are_refused_before_they_are_looked_at(world: World) -> None:
    error = await refused(world, prompt=None, tokens=gen.TokenInput(ids=[2**32 - 1] * 500_000))
    assert reason_of(error) == "PROMPT_TOO_LONG"
    assert fields_of(error) == ["tokens.ids"]
    assert facts_of(error) == {"prompt_tokens": "500000", "context_length": "128"}


async def test_an_unknown_model_comes_before_what_is_wrong_with_the_request(world: World) -> None:
    error = await refused(world, model="nope\n" + "x" * 100, **sampling(temperature=NAN))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(error) == "MODEL_NOT_FOUND"
    assert facts_of(error)["configured_models"] == "big,tiny"
    assert "\n" not in error.details()


async def test_a_denied_strategy_comes_before_the_unknown_model(world: World) -> None:
    error = await refused(world, model="nope", **policy(strategy=gen.CONTENTION_STRATEGY_PREEMPT))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert reason_of(error) == "STRATEGY_DENIED"
    assert facts_of(error) == {"strategy": "preempt", "allowed_strategies": "fail,wait,wait_then_fail"}


async def test_what_is_wrong_comes_before_what_is_missing(world: World) -> None:
    image = gen.ContentPart(image=gen.Blob(mime_type="image/png", data=b"x"))
    chat = gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[image])])
    error = await refused(world, prompt=None, chat=chat, **sampling(temperature=NAN))
    assert reason_of(error) == "INVALID_PARAMETER"


@pytest.mark.parametrize(("part", "capability"), [("image", "vision"), ("audio", "audio"), ("video", "video")])
async def test_media_are_a_missing_capability(world: World, part: str, capability: str) -> None:
    blob = gen.ContentPart(**{part: gen.Blob(mime_type="x/y", data=b"x")})
    chat = gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(text="see"), blob])])
    error = await refused(world, prompt=None, chat=chat)
    assert reason_of(error) == "CAPABILITY_MISSING"
    assert facts_of(error) == {"model": "tiny", "capability": capability}


async def test_a_model_that_sees_is_shown_images_and_hears_nothing(world: World) -> None:
    world.registry.set("tiny", entry=entry("tiny", capabilities=frozenset({Capability.CHAT, Capability.VISION})))
    blob = gen.Blob(mime_type="image/png", data=b"x")
    chat = gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(image=blob)])])
    await world.inference.Generate(pb.GenerateRequest(model="tiny", chat=chat))
    await world.inference.Tokenize(pb.TokenizeRequest(model="tiny", chat=chat))
    shown = world.generations.requests[-1].prompt
    assert isinstance(shown, ChatPrompt)
    assert [(found.mime_type, found.data) for found in shown.blobs] == [("image/png", b"x")]
    assert world.generations.tokenized == [("tiny", shown)]
    chat.messages[0].parts.append(gen.ContentPart(audio=blob))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Generate(pb.GenerateRequest(model="tiny", chat=chat))
    assert facts_of(caught.value)["capability"] == "audio"


async def test_tools_are_a_missing_capability(world: World) -> None:
    message = gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(text="hi")])
    chat = gen.ChatInput(messages=[message], tools=[gen.Tool(name="f", parameters_json="{}")])
    assert facts_of(await refused(world, prompt=None, chat=chat))["capability"] == "tools"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Tokenize(pb.TokenizeRequest(model="tiny", chat=chat))
    assert facts_of(caught.value)["capability"] == "tools"


async def test_a_model_that_can_use_tools_is_offered_them(world: World) -> None:
    world.registry.set("tiny", entry=entry("tiny", capabilities=frozenset({Capability.CHAT, Capability.TOOLS})))
    call = gen.ToolCall(id="c", name="f", arguments_json='{"a": 1}')
    chat = gen.ChatInput(
        messages=[
            gen.ChatMessage(role=gen.ROLE_ASSISTANT, tool_calls=[call]),
            gen.ChatMessage(role=gen.ROLE_TOOL, parts=[gen.ContentPart(text="7")], tool_call_id="c"),
        ],
        tools=[gen.Tool(name="f", description="d", parameters_json="{}")],
    )
    await world.inference.Generate(pb.GenerateRequest(model="tiny", chat=chat))
    prompt = world.generations.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools == (Tool("f", "d", "{}"),)
    assert prompt.messages[0].tool_calls == (ToolCall("c", "f", '{"a": 1}'),)
    assert prompt.messages[1].tool_call_id == "c"


async def test_embed_is_a_missing_capability_after_all_other_checks(world: World) -> None:
    async def reason(request: pb.EmbedRequest) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.inference.Embed(request)
        return reason_of(caught.value)

    assert await reason(pb.EmbedRequest(model="nope")) == "MODEL_NOT_FOUND"
    assert await reason(pb.EmbedRequest(model="tiny")) == "INVALID_PARAMETER"
    assert await reason(pb.EmbedRequest(model="tiny", texts=["a", ""])) == "INVALID_PARAMETER"
    assert await reason(pb.EmbedRequest(model="tiny", texts=["a"])) == "CAPABILITY_MISSING"


@pytest.mark.parametrize("request_id", ["", "x y", "x" * 65])
async def test_cancelling_needs_an_id_that_could_be_one(world: World, request_id: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.CancelGeneration(pb.CancelGenerationRequest(request_id=request_id))
    assert fields_of(caught.value) == ["request_id"]


async def test_tokenizing_needs_an_input(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Tokenize(pb.TokenizeRequest(model="tiny"))
    assert fields_of(caught.value) == ["input"]


async def test_megabytes_in_the_place_of_a_name_are_not_repeated(world: World) -> None:
    error = await refused(world, model="x" * 10_000_000, request_id="y" * 5_000_000)
    assert len(error.details()) < 200
