"""Tools and reasoning over a socket, through both clients: what a model says, taken apart."""

import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from inferd_client import Delta, ToolCall, ToolCallDelta
from support import tiny_llama
from support.both_ways import BothWays, connected
from support.calls import Answer, Peer, chat, failure_of, read, read_until, streamed
from support.contention import policy
from support.servers import ServerProcess, serving, write_config
from support.wire import facts_of, reason_of

WEATHER = {
    "name": "get_weather",
    "description": "Forecast for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
TIME = {"name": "get_time"}


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


SCRIPTS = [
    "<think>\nThe user asks for 東京.\n</think>\n\nLet me look.\n"
    + called("get_weather", city="東京", days=3)
    + "\n"
    + called("get_time"),
    "<think>hm</think>Yes.",
    "still thinking</think>\n\nYes.",
    'Well: <tool_call>{"name": "get_weather", oops</tool_call> 🙂',
    "<think>END of thought</think>Say END now",
    "Hi " + called("get_weather", city="END") + " and END",
    called("get_weather", city="a" * 40),
]
TWO_CALLS, THOUGHT, OPENED, MALFORMED, STOPS, STOPS_IN_CALL, LONG_CALL = range(len(SCRIPTS))
QUESTION = [("user", "What is the weather in Tokyo?")]
EXPECTED = [("get_weather", {"city": "東京", "days": 3}), ("get_time", {})]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`tools` calls them, `opened` begins in its reasoning, `quiet` parses nothing, `plain` takes no tools; `rival`
    fits beside none of them."""
    folder = tmp_path_factory.mktemp("tools")
    tools = tiny_llama.build(folder / "tools", chat_template=tiny_llama.TOOLS_TEMPLATE)
    opened = tiny_llama.build(
        folder / "opened", chat_template=tiny_llama.TOOLS_TEMPLATE.replace("assistant\n{%", "assistant\n<think>\n{%")
    )
    plain = tiny_llama.build(folder / "plain")
    models: list[dict[str, Any]] = [
        {"name": "tools", "path": tools},
        {"name": "opened", "path": opened},
        {"name": "quiet", "path": tools, "tool_call_parser": "none", "reasoning_parser": "none"},
        {"name": "other", "path": tools, "tool_call_parser": "pythonic"},
        {"name": "plain", "path": plain},
        {"name": "rival", "path": plain, "estimated_memory_gb": 1},
    ]
    for model in models:
        model.setdefault("estimated_memory_gb", 0.1)
    config = write_config(folder, models, budget_gb=1, manager={"request_overrides": ["preempt"]})
    scripts = folder / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environ = {"PYTHONPATH": path, "INFERD_TEST_SCRIPTS": str(scripts), "INFERD_TEST_STEP_SECONDS": "0.001"}
    with serving(config, program=("-m", "fakes.scripted_server"), **environ) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(params=["async", "sync"])
async def client(request: pytest.FixtureRequest, scripted: ServerProcess) -> AsyncIterator[BothWays]:
    async with connected(request.param, scripted.address) as both:
        yield both


@pytest.fixture
async def tool_peer(scripted: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(scripted.address) as connection:
        yield connection


def generation_tool(tool: dict[str, Any]) -> gen.Tool:
    return gen.Tool(
        name=tool["name"],
        description=tool.get("description", ""),
        parameters_json=json.dumps(tool.get("parameters", {})),
    )


async def ask(client: BothWays, script: int, model: str = "tools", **options: Any) -> Any:
    """The unary answer, after it was found equal to the streamed one."""
    options = {"messages": QUESTION, "seed": script, "coalesce_ms": 0, **options}
    _, stream = await client.read("stream", model, **options)
    del options["coalesce_ms"]
    result = await client.call("generate", model, **options)
    streamed_one = stream.result
    for name in ("text", "reasoning", "finish_reason", "matched_stop", "token_ids"):
        assert getattr(result, name) == getattr(streamed_one, name), name
    assert calls_of(result.tool_calls) == calls_of(streamed_one.tool_calls)
    assert result.usage.completion_tokens == streamed_one.usage.completion_tokens
    return result


def calls_of(calls: Sequence[ToolCall]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments_json)) for call in calls]


async def test_reasoning_text_and_two_calls_come_apart(client: BothWays) -> None:
    result = await ask(client, TWO_CALLS, tools=[WEATHER, TIME], return_token_ids=True)
    assert result.reasoning == "The user asks for 東京.\n"
    assert result.text == "Let me look.\n"
    assert calls_of(result.tool_calls) == EXPECTED
    assert result.finish_reason == "tool_calls"
    assert len({call.id for call in result.tool_calls}) == 2
    assert len(result.token_ids) == result.usage.completion_tokens, "tokens of markers and calls count"


async def test_a_call_is_streamed_when_it_is_whole(client: BothWays) -> None:
    events, _ = await client.read(
        "stream", "tools", messages=QUESTION, seed=TWO_CALLS, tools=[WEATHER, TIME], coalesce_ms=0
    )
    deltas = [event for event in events if isinstance(event, Delta)]
    parts = [part for delta in deltas for part in delta.tool_calls]
    assert [(part.index, part.name) for part in parts] == [(0, "get_weather"), (1, "get_time")]
    assert all(isinstance(part, ToolCallDelta) and part.id for part in parts)
    kinds = ["".join("rtc"[i] for i, part in enumerate((d.reasoning, d.text, d.tool_calls)) if part) for d in deltas]
    assert "".join(kinds).replace("rr", "r").strip("r").strip("t").strip("c") == ""
    assert [d.completion_tokens for d in deltas] == sorted(d.completion_tokens for d in deltas)
    assert len(deltas) > 20, "reasoning and text come as they are made"


async def test_the_calls_and_their_results_go_back_into_the_template(client: BothWays) -> None:
    first = await ask(client, TWO_CALLS, tools=[WEATHER, TIME])
    messages = [
        *({"role": role, "content": text} for role, text in QUESTION),
        {"role": "assistant", "content": first.text, "tool_calls": first.tool_calls},
        *({"role": "tool", "content": "rain", "tool_call_id": call.id} for call in first.tool_calls),
    ]
    second = await ask(client, THOUGHT, messages=messages, tools=[WEATHER, TIME], return_rendered_prompt=True)
    assert (
        second.rendered_prompt.count('<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京", "days": 3}}')
        == 1
    )
    assert second.rendered_prompt.count("<|im_start|>tool\nrain<|im_end|>") == 2
    assert '"name": "get_time"' in second.rendered_prompt.split("<|im_end|>")[0], "tools on offer"
    assert (second.reasoning, second.text, second.finish_reason) == ("hm", "Yes.", "eos")


async def test_a_template_may_open_the_reasoning(client: BothWays) -> None:
    result = await ask(client, OPENED, "opened")
    assert (result.reasoning, result.text) == ("still thinking", "Yes.")
    result = await ask(client, OPENED, "tools")
    assert (result.reasoning, result.text) == ("", "still thinking</think>\n\nYes.")


async def test_a_malformed_call_is_text(client: BothWays) -> None:
    result = await ask(client, MALFORMED, tools=[WEATHER])
    assert (result.text, result.tool_calls, result.finish_reason) == (SCRIPTS[MALFORMED], (), "eos")


async def test_a_call_of_a_tool_that_is_not_on_offer_is_text(client: BothWays) -> None:
    result = await ask(client, TWO_CALLS, tools=[TIME])
    assert calls_of(result.tool_calls) == EXPECTED[1:]
    assert result.text == "Let me look.\n" + called("get_weather", city="東京", days=3) + "\n"


async def test_calls_are_text_where_no_tools_are_offered_or_another_parser_is_named(client: BothWays) -> None:
    for model, options in (("tools", {}), ("other", {"tools": [WEATHER, TIME]})):
        result = await ask(client, TWO_CALLS, model, **options)
        assert result.tool_calls == ()
        assert result.text == SCRIPTS[TWO_CALLS].split("</think>\n\n")[1]


async def test_with_parsers_none_and_in_raw_prompts_all_is_text(client: BothWays) -> None:
    assert (await ask(client, THOUGHT, "quiet")).text == SCRIPTS[THOUGHT]
    raw = await client.call("generate", "tools", "a raw prompt", seed=THOUGHT)
    assert (raw.text, raw.reasoning) == (SCRIPTS[THOUGHT], "")


async def test_a_stop_sequence_ends_the_answer_and_nothing_else(client: BothWays) -> None:
    result = await ask(client, STOPS, stop="END")
    assert (result.reasoning, result.text) == ("END of thought", "Say ")
    assert (result.finish_reason, result.matched_stop) == ("stop", "END")
    result = await ask(client, STOPS_IN_CALL, stop="END", tools=[WEATHER])
    assert (result.text, result.finish_reason) == ("Hi and ", "stop")
    assert calls_of(result.tool_calls) == [("get_weather", {"city": "END"})]


async def test_an_output_cut_in_a_call_ends_by_its_length_with_the_text(client: BothWays) -> None:
    for tokens in (1, 2, 20, 60):
        result = await ask(client, LONG_CALL, tools=[WEATHER], max_tokens=tokens)
        assert result.finish_reason == "max_tokens"
        assert result.tool_calls == ()
        assert result.text == SCRIPTS[LONG_CALL][: len(result.text)]
        assert len(result.text) == tokens - 1 + len("<tool_call>")


MARKS = {"<think>": 3, "</think>": 4, "<tool_call>": 5, "</tool_call>": 6}


async def test_whatever_a_model_says_the_unary_answer_is_the_streamed_one(client: BothWays) -> None:
    """A random model that is fond of markers."""
    bias = dict.fromkeys(MARKS.values(), 4.0)
    reasoned = called_or_stray = 0
    for seed in range(100, 106):
        result = await ask(
            client, seed, temperature=1.2, logit_bias=bias, max_tokens=60, tools=[WEATHER], return_token_ids=True
        )
        reasoned += bool(result.reasoning)
        called_or_stray += "<tool_call>" in result.text + result.reasoning
        assert len(result.token_ids) == result.usage.completion_tokens
    assert reasoned > 1
    assert called_or_stray > 1


async def test_a_request_that_is_interrupted_in_each_part_goes_on_as_if_nothing_had_happened(
    scripted: ServerProcess, tool_peer: Peer
) -> None:
    tools = [generation_tool(WEATHER), generation_tool(TIME)]
    request = streamed("tools", chat=QUESTION, seed=TWO_CALLS, coalesce_ms=0, waiting_events=True, max_tokens=400)
    request.chat.tools.extend(tools)
    request.output.token_ids = True
    alone = await read(tool_peer.inference.StreamGenerate(request))
    total = alone.end.usage.completion_tokens
    answer, stream = Answer(), tool_peer.inference.StreamGenerate(request)
    await read_until(stream, "started", answer)
    for part in (0.1, 0.5, 0.9):  # in the reasoning, in the first call, in the second
        async for response in stream:
            answer.add(response)
            if response.delta.completion_tokens >= part * total:
                break
        preempting = inf.GenerateRequest(model="rival", prompt="x")
        preempting.scheduling.contention.CopyFrom(policy("preempt"))
        await tool_peer.inference.Generate(preempting, timeout=20)
    await read(stream, answer)
    assert answer.end.preemptions == 3
    assert (answer.token_ids, answer.text) == (alone.token_ids, alone.text)
    assert reasoning_of(answer) == reasoning_of(alone)
    assert parts_of(answer) == parts_of(alone)
    assert answer.end.finish_reason == alone.end.finish_reason == gen.FINISH_REASON_TOOL_CALLS
    assert answer.end.usage.completion_tokens == alone.end.usage.completion_tokens


def reasoning_of(answer: Answer) -> str:
    return "".join(delta.reasoning for delta in answer.deltas)


def parts_of(answer: Answer) -> list[tuple[int, str, str]]:
    return [(part.index, part.name, part.arguments_json) for delta in answer.deltas for part in delta.tool_calls]


async def test_the_catalog_says_who_can_use_tools_and_the_others_refuse_them(tool_peer: Peer) -> None:
    for name, can in {"tools": True, "opened": True, "other": True, "quiet": False, "plain": False}.items():
        model = await tool_peer.model(name)
        assert (mod.MODEL_CAPABILITY_TOOLS in model.capabilities) is can, name
    for name in ("quiet", "plain"):
        offered = chat(*QUESTION, tools=[generation_tool(WEATHER)])
        error = await failure_of(tool_peer.inference.Generate(inf.GenerateRequest(model=name, chat=offered)))
        assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "CAPABILITY_MISSING")
        assert facts_of(error) == {"model": name, "capability": "tools"}


async def test_tokenize_counts_the_tools(tool_peer: Peer) -> None:
    bare = await tool_peer.inference.Tokenize(inf.TokenizeRequest(model="tools", chat=chat(*QUESTION)))
    offered = chat(*QUESTION, tools=[generation_tool(WEATHER)])
    full = await tool_peer.inference.Tokenize(inf.TokenizeRequest(model="tools", chat=offered))
    assert full.count > bare.count + 50
