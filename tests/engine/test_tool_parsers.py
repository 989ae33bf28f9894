"""mlx_lm's parsers of tool calls, as they are used: every family's own way of writing the same call."""

import json
import pkgutil
import time
from importlib import import_module

import pytest

from inferd_server.core.generation import ChatPrompt, Tool
from inferd_server.engine.tool_parsers import MATCH_SECONDS, open_tool_parser
from inferd_server.text.calls import CallReader
from inferd_server.text.families import TOOL_CALLS
from inferd_server.text.markup import MAX_STRAY_MARKERS, Splitter

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}},
}
CHAT = ChatPrompt((), (Tool("get_weather", "Forecast.", json.dumps(SCHEMA)), Tool("stop", "", "")))
EXPECTED = {"city": "Río <1>", "days": 3}

# What a model of the family says for get_weather(city="Río <1>", days=3).
SAMPLES = {
    "function_gemma": "<start_function_call>call:get_weather{city:<escape>Río <1><escape>,days:3}<end_function_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Río <1><|"|>,days:3}<tool_call|>',
    "glm47": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Río <1></arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "json_tools": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Río <1>", "days": 3}}\n</tool_call>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Río <1>", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Río <1><|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "laguna": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Río <1></arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
    "longcat": "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Río <1></longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
    "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
    "minicpm5": '<function name="get_weather"><param name="city"><![CDATA[Río <1>]]></param>'
    '<param name="days">3</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Río <1></parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Río <1>", "days": 3}',
    "muse_spark": '<atem:function_calls><atem:invoke name="get_weather"><atem:parameter name="city">Río <1>'
    '</atem:parameter><atem:parameter name="days">3</atem:parameter></atem:invoke></atem:function_calls>',
    "pythonic": '<|tool_call_start|>[get_weather(city="Río <1>", days=3)]<|tool_call_end|>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nRío <1>\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
}
GARBAGE = [
    "",
    "no call at all",
    "{",
    '{"name": "get_weather"',
    "[1, 2",
    "get_weather(",
    "\x00",
    "<function=get_weather>",
    "call:get_weather{city:",
    '{"name": "other", "arguments": {}}',
    "[[[[" * 2000,
    '{"a":' * 5000,
    "-" * 20_000,
]


def take_apart(name: str, text: str, step: int = 1) -> tuple[str, list[tuple[str, object]]]:
    """(the answer, (name, arguments) of each call)."""
    splitter = Splitter(None, TOOL_CALLS[name], CallReader(open_tool_parser(name), CHAT).read)
    pieces = [piece for at in range(0, len(text), step) for piece in splitter.feed(text[at : at + step])]
    pieces += splitter.flush(cut=False)
    calls = [(piece.call.name, json.loads(piece.call.arguments_json)) for piece in pieces if piece.call is not None]
    return "".join(piece.text for piece in pieces), calls


def test_every_parser_of_mlx_lm_is_in_the_table_with_its_markers() -> None:
    package = import_module("mlx_lm.tool_parsers")
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert found == TOOL_CALLS.keys() == SAMPLES.keys()
    for name, markers in TOOL_CALLS.items():
        module = import_module(f"mlx_lm.tool_parsers.{name}")
        assert (module.tool_call_start, module.tool_call_end) == (markers.start, markers.end)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_familys_call_is_read_with_arguments_of_the_schemas_types(name: str, step: int) -> None:
    assert take_apart(name, f"So:{SAMPLES[name]}", step) == ("So:", [("get_weather", EXPECTED)])


@pytest.mark.parametrize("name", [name for name, markers in TOOL_CALLS.items() if markers.end])
def test_calls_in_a_row_are_several(name: str) -> None:
    text = f"{SAMPLES[name]}\n{SAMPLES[name]}\n"
    assert take_apart(name, text) == ("", [("get_weather", EXPECTED)] * 2)


def test_a_piece_may_hold_several_calls() -> None:
    text = '<|tool_call_start|>[get_weather(city="a"), stop()]<|tool_call_end|>'
    assert take_apart("pythonic", text) == ("", [("get_weather", {"city": "a"}), ("stop", {})])
    text = '[TOOL_CALLS]get_weather[ARGS]{"city": "a"}stop[ARGS]{}'
    assert take_apart("mistral", text) == ("", [("get_weather", {"city": "a"}), ("stop", {})])


@pytest.mark.parametrize("name", ["glm47", "laguna", "longcat", "qwen3_coder", "minimax_m2", "minicpm5"])
def test_digits_stay_text_where_the_schema_says_text(name: str) -> None:
    text = SAMPLES[name].replace("days", "zip")
    [(_, arguments)] = take_apart(name, text)[1]
    assert arguments == {"city": "Río <1>", "zip": "3"}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("garbage", range(len(GARBAGE)))
def test_garbage_is_text(name: str, garbage: int) -> None:
    markers = TOOL_CALLS[name]
    text = markers.start + GARBAGE[garbage] + markers.end
    assert take_apart(name, text) == (text, [])


@pytest.mark.parametrize("name", SAMPLES)
def test_a_call_of_a_tool_that_is_not_on_offer_is_text(name: str) -> None:
    text = SAMPLES[name].replace("get_weather", "delete_all")
    assert take_apart(name, text) == (text, [])


@pytest.mark.parametrize(
    ("name", "fragment"), [("gemma4", "call:f{"), ("kimi_k3", "<|open|>call"), ("glm47", "<arg_key>")]
)
def test_text_that_is_hard_to_match_takes_a_bounded_time(name: str, fragment: str) -> None:
    text = TOOL_CALLS[name].start + fragment * (60_000 // len(fragment)) + TOOL_CALLS[name].end
    started = time.process_time()
    assert take_apart(name, text, 10_000) == (text, [])
    assert time.process_time() - started < 3 * MATCH_SECONDS * MAX_STRAY_MARKERS


def test_a_parser_is_opened_once() -> None:
    assert open_tool_parser("glm47") is open_tool_parser("glm47")
