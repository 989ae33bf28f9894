"""Constrained outputs over a real socket: valid beside free ones, whole and streamed; bad constraints refused."""

import asyncio
import json
import re
from typing import Any

import grpc
import jsonschema
import pytest

from inferd.v1 import generation_pb2 as gen
from support.calls import Peer, endless, failure_of, read, read_until, streamed, unary
from support.wire import fields_of, reason_of

COLOURS = ["red", "green", "a dark blue"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": COLOURS}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def constrained(**fields: Any) -> gen.OutputConstraint:
    return gen.OutputConstraint(**fields)


PERSON = constrained(json_schema=json.dumps(SCHEMA))
COLOUR = constrained(choice=gen.OutputConstraint.Choices(options=COLOURS))
CODE = constrained(regex="[A-Z]{2}-[0-9]{2,4}")
SUM = constrained(lark_grammar='start: NUM ("+" NUM){1,3}\nNUM: /[1-9][0-9]?/')


def check_person(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("model", ["tiny", "serial"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "top_p": 0.9, "seed": 3}], ids=["greedy", "drawn"])
async def test_each_kind_of_constraint_holds_whole_and_streamed(
    peer: Peer, model: str, sampling: dict[str, Any]
) -> None:
    texts = []
    for constraint in (PERSON, COLOUR, CODE, SUM):
        wanted = {"prompt": "Answer.", "constraint": constraint, "max_tokens": 400, **sampling}
        whole = await peer.inference.Generate(unary(model, **wanted))
        answer = await read(peer.inference.StreamGenerate(streamed(model, **wanted)))
        assert answer.text == whole.text
        assert whole.finish_reason == answer.end.finish_reason == gen.FINISH_REASON_EOS
        texts.append(whole.text)
    check_person(texts[0])
    assert texts[1] in COLOURS
    assert re.fullmatch("[A-Z]{2}-[0-9]{2,4}", texts[2])
    assert re.fullmatch(r"[1-9]\d?(\+[1-9]\d?){1,3}", texts[3])


async def test_constrained_and_free_requests_share_a_batch(peer: Peer) -> None:
    def request(number: int) -> Any:
        more = {"constraint": PERSON, "max_tokens": 400} if number % 2 else {"ignore_eos": True, "max_tokens": 60}
        return unary("tiny", prompt=f"number {number}", **more)

    alone = [await peer.inference.Generate(request(number)) for number in range(6)]
    together = await asyncio.gather(*(peer.inference.Generate(request(number)) for number in range(6)))
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    for answer in together[1::2]:
        check_person(answer.text)


async def test_a_cut_answer_says_that_its_length_cut_it(peer: Peer) -> None:
    answer = await peer.inference.Generate(unary("tiny", prompt="x", constraint=PERSON, max_tokens=7))
    assert answer.finish_reason == gen.FINISH_REASON_MAX_TOKENS
    assert answer.text.startswith('{"name"'[: len(answer.text)])


async def test_a_stop_sequence_ends_a_constrained_answer_too(peer: Peer) -> None:
    constraint = constrained(regex="[ab]{5}x[ab]{5}")
    answer = await peer.inference.Generate(unary("tiny", prompt="x", constraint=constraint, sequences=["x"]))
    assert (answer.finish_reason, answer.matched_stop) == (gen.FINISH_REASON_STOP, "x")
    assert re.fullmatch("[ab]{5}", answer.text)


BAD = [
    ("json_schema", "json_schema", '{"type": "object", "properties": {"a": {"type": "strin"}}}', "/properties/a"),
    ("json_schema", "json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ("json_schema", "json_schema", '{"$ref": "https://example.com/s.json"}', "example.com"),
    ("json_schema", "json_schema", '{"type": ', "character 9"),
    ("regex", "regex", "ab(", "character 3"),
    ("lark_grammar", "lark_grammar", 'start: "a" b', "line 1, column 8"),
    ("lark_grammar", "lark_grammar", "start: start", "no output"),
]


@pytest.mark.parametrize(("kind", "field", "text", "told"), BAD)
async def test_a_bad_constraint_is_refused_with_its_place_before_admission(
    peer: Peer, kind: str, field: str, text: str, told: str
) -> None:
    request = streamed("serial", prompt="x", constraint=constrained(**{kind: text}))
    occupant = peer.inference.StreamGenerate(endless("serial"))
    await read_until(occupant, "delta")
    error = (await read(peer.inference.StreamGenerate(request))).failure
    occupant.cancel()
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
    assert fields_of(error) == [f"output.constraint.{field}"]
    assert told in (error.details() or "")


async def test_ignoring_the_end_and_a_constraint_exclude_each_other(peer: Peer) -> None:
    error = await failure_of(peer.inference.Generate(unary("tiny", prompt="x", constraint=CODE, ignore_eos=True)))
    assert fields_of(error) == ["stop.ignore_eos"]
