"""What a request may cost the event loop: its JSON is bounded in all, and checked on a thread where there is much."""

import json
import threading
from typing import Any

import grpc
import pytest

from fakes.registry import entry
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as pb
from inferd_server.core.generation import ChatPrompt
from inferd_server.core.model import Capability
from inferd_server.rpc.validate import MAX_JSON_CHARACTERS_IN_ALL
from inferd_server.rpc.validate_chat import MAX_JSON_CHARACTERS
from inferd_server.rpc.weight import LIGHT_JSON_CHARACTERS, LIGHT_PIECES, LIGHT_TOKEN_IDS, run_weighed
from support.rpc_world import World
from support.wire import fields_of

HI = gen.ChatMessage(role=gen.ROLE_USER, parts=[gen.ContentPart(text="hi")])


def padded(characters: int) -> str:
    """A JSON object of so many characters."""
    return '{"a":"' + "x" * (characters - 8) + '"}'


def chat(*jsons: str, messages: int = 1, **fields: Any) -> gen.ChatInput:
    """A chat with a tool for each JSON text."""
    tools = [gen.Tool(name=f"f{i}", parameters_json=text) for i, text in enumerate(jsons)]
    return gen.ChatInput(messages=[HI] * messages, tools=tools, **fields)


@pytest.fixture
def tools(world: World) -> World:
    """A world whose model takes tools."""
    world.registry.set("tiny", entry=entry("tiny", capabilities=frozenset({Capability.CHAT, Capability.TOOLS})))
    return world


async def test_json_is_bounded_in_all_and_none_is_parsed_beyond(tools: World) -> None:
    full = [padded(MAX_JSON_CHARACTERS)] * (MAX_JSON_CHARACTERS_IN_ALL // MAX_JSON_CHARACTERS)
    await tools.inference.Generate(pb.GenerateRequest(model="tiny", chat=chat(*full)))
    schema = gen.OutputOptions(constraint=gen.OutputConstraint(json_schema="["))
    call = gen.ToolCall(id="c", name="f", arguments_json="[")
    calling = gen.ChatMessage(role=gen.ROLE_ASSISTANT, tool_calls=[call])
    for request in (
        pb.GenerateRequest(model="tiny", chat=chat(*full, "[")),
        pb.GenerateRequest(model="tiny", chat=chat(*full, template_variables_json="[")),
        pb.GenerateRequest(model="tiny", chat=gen.ChatInput(messages=[calling], tools=chat(*full).tools)),
        pb.GenerateRequest(model="tiny", chat=chat(*full), output=schema),
        pb.TokenizeRequest(model="tiny", chat=chat(*full, "[")),
    ):
        method = tools.inference.Tokenize if isinstance(request, pb.TokenizeRequest) else tools.inference.Generate
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request)
        assert fields_of(caught.value) == ["chat"]


async def test_a_json_text_is_parsed_once(tools: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    loads = json.loads

    def counting(text: str) -> Any:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", counting)
    request = pb.GenerateRequest(model="tiny", chat=chat('{"b": 2}', template_variables_json='{"a": 1}'))
    await tools.inference.Generate(request)
    assert sorted(parsed) == ['{"a": 1}', '{"b": 2}']
    prompt = tools.generations.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_variables == {"a": 1}


MANY_PARTS = gen.ChatMessage(role=gen.ROLE_USER, parts=HI.parts[:1] * LIGHT_PIECES)
IMAGE = gen.ChatMessage(parts=[gen.ContentPart(image=gen.Blob(data=b"x"))])
MANY_CALLS = gen.ChatMessage(role=gen.ROLE_ASSISTANT, tool_calls=[gen.ToolCall()] * LIGHT_PIECES)


@pytest.mark.parametrize(
    ("fields", "is_heavy"),
    [
        ({"prompt": "x" * 1_000_000}, False),
        ({"chat": chat(padded(LIGHT_JSON_CHARACTERS))}, False),
        ({"chat": chat(padded(LIGHT_JSON_CHARACTERS + 1))}, True),
        ({"chat": chat(messages=LIGHT_PIECES // 2)}, False),
        ({"chat": chat(messages=LIGHT_PIECES // 2 + 1)}, True),
        ({"chat": chat(messages=LIGHT_PIECES + 1)}, True),
        ({"chat": gen.ChatInput(messages=[MANY_PARTS])}, True),
        ({"chat": gen.ChatInput(messages=[IMAGE])}, True),
        ({"chat": gen.ChatInput(messages=[MANY_CALLS])}, True),
        ({"tokens": gen.TokenInput(ids=[1] * LIGHT_TOKEN_IDS)}, False),
        ({"tokens": gen.TokenInput(ids=[1] * (LIGHT_TOKEN_IDS + 1))}, True),
    ],
)
async def test_what_takes_long_is_done_on_a_thread(fields: dict[str, Any], is_heavy: bool) -> None:
    done_on = await run_weighed(pb.GenerateRequest(**fields), threading.get_ident)
    assert (done_on != threading.get_ident()) is is_heavy


async def test_a_heavy_request_is_checked_on_a_thread(tools: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    loads = json.loads

    def noting(text: str) -> Any:
        threads.append(threading.get_ident())
        return loads(text)

    monkeypatch.setattr(json, "loads", noting)
    heavy = chat(padded(LIGHT_JSON_CHARACTERS + 1))
    await tools.inference.Generate(pb.GenerateRequest(model="tiny", chat=heavy))
    await tools.inference.Tokenize(pb.TokenizeRequest(model="tiny", chat=heavy))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_tool_calls_are_bounded_in_all(tools: World) -> None:
    turn = gen.ChatMessage(role=gen.ROLE_ASSISTANT, tool_calls=[gen.ToolCall()] * 256)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tools.inference.Generate(pb.GenerateRequest(model="tiny", chat=gen.ChatInput(messages=[turn] * 65)))
    assert fields_of(caught.value) == ["chat.messages"]
