"""Bad input of each kind: refused with every violation, nothing changed, and the next request works."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from support.calls import Peer, chat, failure_of, read, streamed, unary
from support.servers import ServerProcess
from support.wire import error_details, facts_of, fields_of, reason_of, trailers_nbytes

NAN, INFINITY = float("nan"), float("inf")
USER = [("user", "hi")]

BAD: list[tuple[str, dict[str, Any], list[str]]] = [
    ("temperature NaN", {"temperature": NAN}, ["sampling.temperature"]),
    ("temperature infinite", {"temperature": INFINITY}, ["sampling.temperature"]),
    ("temperature negative", {"temperature": -0.1}, ["sampling.temperature"]),
    ("temperature huge", {"temperature": 1e30}, ["sampling.temperature"]),
    ("top_p 0", {"top_p": 0.0}, ["sampling.top_p"]),
    ("top_p above 1", {"top_p": 1.01}, ["sampling.top_p"]),
    ("top_p NaN", {"top_p": NAN}, ["sampling.top_p"]),
    ("top_k beyond the vocabulary", {"top_k": 264}, ["sampling.top_k"]),
    ("top_k huge", {"top_k": 2**32 - 1}, ["sampling.top_k"]),
    ("min_p above 1", {"min_p": 1.5}, ["sampling.min_p"]),
    ("min_p NaN", {"min_p": NAN}, ["sampling.min_p"]),
    ("repetition_penalty 0", {"repetition_penalty": 0.0}, ["sampling.repetition_penalty"]),
    ("repetition_penalty negative", {"repetition_penalty": -1.0}, ["sampling.repetition_penalty"]),
    ("repetition_penalty infinite", {"repetition_penalty": INFINITY}, ["sampling.repetition_penalty"]),
    ("repetition_window 0", {"repetition_window": 0}, ["sampling.repetition_window"]),
    ("repetition_window huge", {"repetition_window": 2**32 - 1}, ["sampling.repetition_window"]),
    ("presence_penalty NaN", {"presence_penalty": NAN}, ["sampling.presence_penalty"]),
    ("frequency_penalty infinite", {"frequency_penalty": -INFINITY}, ["sampling.frequency_penalty"]),
    ("logit_bias NaN", {"logit_bias": {5: NAN}}, ["sampling.logit_bias[5]"]),
    ("logit_bias infinite", {"logit_bias": {5: INFINITY}}, ["sampling.logit_bias[5]"]),
    ("logit_bias beyond the vocabulary", {"logit_bias": {263: 1.0}}, ["sampling.logit_bias[263]"]),
    ("logit_bias id huge", {"logit_bias": {2**32 - 1: 1.0}}, ["sampling.logit_bias[4294967295]"]),
    ("too many logit_bias", {"logit_bias": dict.fromkeys(range(5000), 1.0)}, ["sampling.logit_bias"]),
    ("max_tokens 0", {"max_tokens": 0}, ["stop.max_tokens"]),
    ("empty stop sequence", {"sequences": ["ok", ""]}, ["stop.sequences[1]"]),
    ("long stop sequence", {"sequences": ["x" * 100_000]}, ["stop.sequences[0]"]),
    ("many stop sequences", {"sequences": ["x"] * 1000}, ["stop.sequences"]),
    ("stop id beyond the vocabulary", {"token_ids": [3, 263]}, ["stop.token_ids[1]"]),
    ("many stop ids", {"token_ids": [3] * 10_000}, ["stop.token_ids"]),
    ("too many alternatives", {"top_logprobs": 2**32 - 1}, ["output.top_logprobs"]),
    ("priority too high", {"priority": 101}, ["scheduling.priority"]),
    ("priority huge", {"priority": -(2**31)}, ["scheduling.priority"]),
    ("request id with a space", {"request_id": "a b"}, ["request_id"]),
    ("request id with a newline", {"request_id": "a\n"}, ["request_id"]),
    ("request id too long", {"request_id": "x" * 65}, ["request_id"]),
    ("session id too long", {"session_id": "x" * 10_000}, ["session_id"]),
    ("empty prompt", {"prompt": ""}, ["prompt"]),
    ("empty chat", {"chat": []}, ["chat.messages"]),
    ("chat that says nothing", {"chat": [("user", "")]}, ["chat.messages"]),
    ("no ids", {"ids": []}, ["tokens.ids"]),
    ("id beyond the vocabulary", {"ids": [3, 263, 4]}, ["tokens.ids[1]"]),
    ("id huge", {"ids": [2**32 - 1]}, ["tokens.ids[0]"]),
    (
        "wait_timeout negative",
        {"contention": {"strategy": gen.CONTENTION_STRATEGY_WAIT_THEN_FAIL, "wait_timeout": {"seconds": -1}}},
        ["scheduling.contention.wait_timeout"],
    ),
    ("unknown strategy", {"contention": {"strategy": 99}}, ["scheduling.contention.strategy"]),
    (
        "many at once",
        {"temperature": NAN, "top_p": 2.0, "max_tokens": 0, "priority": 500, "sequences": [""], "request_id": "ä"},
        [
            "request_id",
            "sampling.temperature",
            "sampling.top_p",
            "scheduling.priority",
            "stop.max_tokens",
            "stop.sequences[0]",
        ],
    ),
]


async def still_works(peer: Peer) -> None:
    answer = await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=2, ignore_eos=True))
    assert answer.usage.completion_tokens == 2


def shown_before_and_after(model: mod.Model) -> tuple[Any, ...]:
    return (model.state, model.load_generation, model.memory.charged_bytes, model.running_requests, model.last_error)


@pytest.mark.parametrize(("values", "fields"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_a_bad_field_is_named_and_changes_nothing(peer: Peer, values: dict[str, Any], fields: list[str]) -> None:
    before = shown_before_and_after(await peer.model("tiny"))
    if not {"prompt", "chat", "ids"} & set(values):
        values = {**values, "prompt": "x"}
    whole = await failure_of(peer.inference.Generate(unary("tiny", **values)))
    error = (await read(peer.inference.StreamGenerate(streamed("tiny", **values)))).failure
    for found in (whole, error):
        assert (found.code(), reason_of(found)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
        assert sorted(fields_of(found)) == fields
        assert facts_of(found)["violations"] == str(len(fields))
        assert trailers_nbytes(found) < 6 * 1024
    assert shown_before_and_after(await peer.model("tiny")) == before
    await still_works(peer)


BAD_CHATS: list[tuple[str, gen.ChatInput, str]] = [
    ("no role", gen.ChatInput(messages=[gen.ChatMessage(parts=[gen.ContentPart(text="x")])]), "chat.messages[0].role"),
    (
        "unknown role",
        gen.ChatInput(messages=[gen.ChatMessage(role=77, parts=[gen.ContentPart(text="x")])]),  # type: ignore[arg-type]
        "chat.messages[0].role",
    ),
    (
        "part without content",
        gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart()])]),
        "chat.messages[0].parts[0]",
    ),
    (
        "tool result without a call",
        gen.ChatInput(
            messages=[
                gen.ChatMessage(role=gen.ROLE_TOOL, parts=[gen.ContentPart(text="x")], tool_call_id="1"),
            ]
        ),
        "chat.messages[0].tool_call_id",
    ),
    ("variables no JSON", chat(*USER, template_variables_json="{"), "chat.template_variables_json"),
    ("variables no object", chat(*USER, template_variables_json="[1]"), "chat.template_variables_json"),
    ("variables NaN", chat(*USER, template_variables_json='{"a": NaN}'), "chat.template_variables_json"),
    (
        "variables lone surrogate",
        chat(*USER, template_variables_json='{"a": "\\ud800"}'),
        "chat.template_variables_json",
    ),
    ("surrogate in a key", chat(*USER, template_variables_json='{"\\udfff": 1}'), "chat.template_variables_json"),
    ("variables deep", chat(*USER, template_variables_json='{"a":' * 50_000), "chat.template_variables_json"),
    (
        "variables deep and whole",
        chat(*USER, template_variables_json='{"a":' * 5_000 + "1" + "}" * 5_000),
        "chat.template_variables_json",
    ),
    (
        "a huge number",
        chat(*USER, template_variables_json='{"a": ' + "9" * 10_000 + "}"),
        "chat.template_variables_json",
    ),
    ("variables that shadow", chat(*USER, template_variables_json='{"messages": []}'), "chat.template_variables_json"),
]


@pytest.mark.parametrize(("message", "field"), [case[1:] for case in BAD_CHATS], ids=[case[0] for case in BAD_CHATS])
async def test_a_bad_chat_is_refused_wherever_chats_are_taken(peer: Peer, message: gen.ChatInput, field: str) -> None:
    stop = gen.StopOptions(max_tokens=1)
    calls = (
        peer.inference.Generate(inf.GenerateRequest(model="tiny", chat=message, stop=stop)),
        peer.inference.Tokenize(inf.TokenizeRequest(model="tiny", chat=message)),
    )
    for call in calls:
        error = await failure_of(call)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
        assert field in fields_of(error)
    await still_works(peer)


async def test_no_input_at_all_is_refused(peer: Peer) -> None:
    error = await failure_of(peer.inference.Generate(inf.GenerateRequest(model="tiny")))
    assert fields_of(error) == ["input"]
    error = await failure_of(peer.inference.Tokenize(inf.TokenizeRequest(model="tiny")))
    assert fields_of(error) == ["input"]


async def test_an_unknown_model_is_named_with_the_configured_ones(peer: Peer) -> None:
    wanted = "gpt-4o\nx" + "y" * 100
    shown = "gpt-4o\N{REPLACEMENT CHARACTER}x" + "y" * 55 + "…"
    embed = inf.EmbedRequest(model=wanted, texts=["x"])
    for call in (
        peer.inference.Generate(unary(wanted, prompt="x", temperature=NAN)),  # existence comes before validation
        peer.inference.Embed(embed),
        peer.inference.Tokenize(inf.TokenizeRequest(model=wanted, prompt="x")),
        peer.models.GetModel(mod.GetModelRequest(name=wanted)),
        peer.models.LoadModel(mod.LoadModelRequest(name=wanted)),
        peer.models.UnloadModel(mod.UnloadModelRequest(name=wanted)),
    ):
        error = await failure_of(call)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
        facts = facts_of(error)
        assert facts["configured_models"] == "endless,plain,serial,short,tiny"
        assert facts["model"] == shown
        resource = error_details(error)["ResourceInfo"]
        assert (resource.resource_type, resource.resource_name) == ("inferd.v1.Model", shown)
    error = (await read(peer.inference.StreamGenerate(streamed("", prompt="x")))).failure
    assert reason_of(error) == "MODEL_NOT_FOUND"


IMAGE = gen.ContentPart(image=gen.Blob(mime_type="image/png", data=b"x"))
AUDIO = gen.ContentPart(audio=gen.Blob(mime_type="audio/wav", data=b"x"))
TOOL = gen.Tool(name="f", description="d", parameters_json='{"type": "object"}')
NEEDS: list[tuple[str, dict[str, Any]]] = [
    ("vision", {"chat": gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[IMAGE])])}),
    ("audio", {"chat": gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[AUDIO])])}),
    ("tools", {"chat": chat(*USER, tools=[TOOL])}),
]


@pytest.mark.parametrize(("capability", "values"), NEEDS)
async def test_what_no_model_can_is_refused_by_name(peer: Peer, capability: str, values: dict[str, Any]) -> None:
    whole = await failure_of(peer.inference.Generate(inf.GenerateRequest(model="small", **values)))
    request = inf.StreamGenerateRequest(model="small", **values)
    error = (await read(peer.inference.StreamGenerate(request))).failure
    for found in (whole, error):
        assert (found.code(), reason_of(found)) == (grpc.StatusCode.INVALID_ARGUMENT, "CAPABILITY_MISSING")
        assert facts_of(found) == {"model": "tiny", "capability": capability}
    await still_works(peer)


async def test_nothing_embeds(peer: Peer) -> None:
    error = await failure_of(peer.inference.Embed(inf.EmbedRequest(model="small", texts=["x"])))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "CAPABILITY_MISSING")
    assert facts_of(error)["capability"] == "embed"
    error = await failure_of(peer.inference.Embed(inf.EmbedRequest(model="small")))
    assert fields_of(error) == ["texts"]


async def test_a_chat_for_a_model_without_a_template_is_a_missing_capability(peer: Peer) -> None:
    calls = (
        peer.inference.Generate(unary("plain", chat=USER)),
        peer.inference.Tokenize(inf.TokenizeRequest(model="plain", chat=chat(*USER))),
    )
    for call in calls:
        error = await failure_of(call)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "CAPABILITY_MISSING")
        assert facts_of(error)["capability"] == "chat"
    assert (await peer.model("plain")).state == mod.MODEL_STATE_UNLOADED, "a refused request loads nothing"


@pytest.mark.parametrize(
    ("values", "field", "tokens"),
    [
        ({"prompt": "x" * 64}, "prompt", 64),
        ({"prompt": "x" * 3000}, "prompt", 3000),
        ({"ids": [5] * 64}, "tokens.ids", 64),
        ({"chat": [("user", "y" * 60)]}, "chat", None),
    ],
)
async def test_a_prompt_that_fills_the_context_is_refused(
    peer: Peer, values: dict[str, Any], field: str, tokens: int | None
) -> None:
    error = (await read(peer.inference.StreamGenerate(streamed("short", **values)))).failure
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
    facts = facts_of(error)
    assert facts["context_length"] == "64"
    assert tokens is None or facts["prompt_tokens"] == str(tokens)
    assert fields_of(error) == [field]
    await still_works(peer)


@pytest.mark.parametrize("values", [{"prompt": "lorem " * 1_700_000}, {"chat": [("user", "ä" * 5_000_000)]}])
async def test_ten_megabytes_of_prompt_are_refused_while_others_are_served(
    main_server: ServerProcess, peer: Peer, neighbour: Peer, values: dict[str, Any]
) -> None:
    before = main_server.rss_nbytes
    refused = asyncio.create_task(failure_of(peer.inference.Generate(unary("tiny", **values), timeout=60)))
    delays = []
    while not refused.done():
        began = asyncio.get_running_loop().time()
        await neighbour.check("liveness")
        delays.append(asyncio.get_running_loop().time() - began)
        await asyncio.sleep(0.005)
    assert reason_of(await refused) == "PROMPT_TOO_LONG"
    print(f"10 MB prompt: {len(delays)} probes, slowest {max(delays) * 1000:.0f} ms")
    assert max(delays) < 1
    assert main_server.rss_nbytes - before < 300 * 2**20
    await still_works(peer)


async def test_a_million_token_ids_are_refused_at_once(peer: Peer) -> None:
    error = await failure_of(peer.inference.Generate(unary("tiny", ids=[5] * 1_000_000)))
    assert (reason_of(error), facts_of(error)["prompt_tokens"]) == ("PROMPT_TOO_LONG", "1000000")


async def test_a_message_beyond_the_limit_is_refused_and_the_connection_lives_on(peer: Peer) -> None:
    error = await failure_of(peer.inference.Generate(unary("tiny", prompt="x" * (65 * 2**20))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await still_works(peer)


async def test_many_violations_are_counted_and_the_trailers_stay_small(peer: Peer) -> None:
    error = await failure_of(peer.inference.Generate(unary("tiny", ids=[2**32 - 1 - i for i in range(4000)])))
    assert len(fields_of(error)) == 16
    assert int(facts_of(error)["violations"]) > 16
    assert trailers_nbytes(error) < 6 * 1024
    wide = chat(*(("user", "") for _ in range(500)), template_variables_json="ü" * 2000)
    error = await failure_of(peer.inference.Generate(inf.GenerateRequest(model="tiny", chat=wide)))
    assert trailers_nbytes(error) < 6 * 1024


async def test_a_strategy_that_is_not_allowed_is_denied_before_anything_else_is_looked_at(peer: Peer) -> None:
    denied = {"strategy": gen.CONTENTION_STRATEGY_PREEMPT}
    calls = (
        peer.inference.Generate(unary("no-such-model", prompt="", contention=denied)),
        peer.models.LoadModel(mod.LoadModelRequest(name="no-such-model", contention=gen.ContentionPolicy(**denied))),  # type: ignore[arg-type]
        peer.inference.Embed(
            inf.EmbedRequest(
                model="none",
                scheduling=gen.SchedulingOptions(contention=gen.ContentionPolicy(**denied)),  # type: ignore[arg-type]
            )
        ),
    )
    for call in calls:
        error = await failure_of(call)
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.PERMISSION_DENIED, "STRATEGY_DENIED")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (mod.ListModelsRequest(page_size=-1), "page_size"),
        (mod.ListModelsRequest(page_token="rubbish"), "page_token"),
        (mod.ListModelsRequest(states=[99]), "states[0]"),  # type: ignore[list-item]
    ],
)
async def test_a_bad_page_is_refused(peer: Peer, request_: mod.ListModelsRequest, field: str) -> None:
    error = await failure_of(peer.models.ListModels(request_))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
    assert fields_of(error) == [field]


async def test_a_bad_unload_is_refused(peer: Peer) -> None:
    error = await failure_of(peer.models.UnloadModel(mod.UnloadModelRequest(name="tiny", mode=9)))  # type: ignore[arg-type]
    assert fields_of(error) == ["mode"]
    request = mod.UnloadModelRequest(name="tiny")
    request.drain_timeout.seconds = -5
    error = await failure_of(peer.models.UnloadModel(request))
    assert fields_of(error) == ["drain_timeout"]
    assert (await peer.model("tiny")).state == mod.MODEL_STATE_LOADED


async def test_bytes_that_are_no_message_end_the_call_alone(peer: Peer) -> None:
    call = peer.channel.unary_unary("/inferd.v1.InferenceService/Generate")
    not_utf8 = b"\x12\x04tiny\x1a\x02\xff\xfe"
    for rubbish in (b"\xff" * 100, b"\x12\xff\xff\xff\xff\x7f", not_utf8):
        error = await failure_of(call(rubbish, timeout=10))
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
        assert fields_of(error) == ["request"]
    await still_works(peer)


async def test_an_unknown_method_is_unimplemented(peer: Peer) -> None:
    for path in ("/inferd.v1.InferenceService/Nothing", "/inferd.v9.Other/X"):
        error = await failure_of(peer.channel.unary_unary(path)(b"", timeout=10))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_no_text_of_a_request_reaches_the_log(peer: Peer, main_server: ServerProcess) -> None:
    secret = "correct horse battery staple"
    await peer.inference.Generate(unary("tiny", prompt=secret, max_tokens=2))
    await failure_of(peer.inference.Generate(unary("tiny", prompt=secret, temperature=NAN)))
    await failure_of(
        peer.inference.Generate(
            inf.GenerateRequest(model="tiny", chat=chat(("user", secret), template_variables_json=json.dumps([secret])))
        )
    )
    await asyncio.sleep(0.1)
    assert not [line for line in main_server.log if secret in line]
    assert not [line for line in main_server.log if "Traceback" in line]
