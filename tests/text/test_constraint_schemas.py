"""Whatever comes out under a JSON Schema is valid; what can't be promised is refused with a reason."""

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLTokenizer

from inferd_server.core.constraints import Constraint, ConstraintKind
from inferd_server.core.errors import InferdError, Reason
from inferd_server.text.grammars import build_vocabulary, compile_constraint
from inferd_server.text.tokenizer import Tokenizer
from support.constrained_walks import text_of, walk
from support.json_schemas import REFUSED, SCHEMAS

SEEDS = range(4)


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def words(request: pytest.FixtureRequest, folders: Any) -> tuple[Tokenizer, LLTokenizer]:
    tokenizer = Tokenizer.load(folders[request.param])
    return tokenizer, build_vocabulary(tokenizer)


def schema_constraint(schema: Any) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), "a key occurs twice"
    return dict(pairs)


def validate(text: str, schema: dict[str, Any]) -> None:
    value = json.loads(text, object_pairs_hook=unique_keys)
    validator = jsonschema.Draft202012Validator
    jsonschema.validate(value, schema, cls=validator, format_checker=validator.FORMAT_CHECKER)


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in REFUSED])
def test_every_completed_output_is_valid(name: str, words: tuple[Tokenizer, LLTokenizer]) -> None:
    tokenizer, vocabulary = words
    grammar = compile_constraint(vocabulary, schema_constraint(SCHEMAS[name]))
    texts = []
    for seed in SEEDS:
        ids, is_complete = walk(grammar.matcher(), tokenizer, seed)
        if is_complete:
            texts.append(text_of(tokenizer, ids))
            validate(texts[-1], SCHEMAS[name])
    assert texts, "at least one output was completed"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_enforced_is_refused_by_name(name: str, words: tuple[Tokenizer, LLTokenizer]) -> None:
    with pytest.raises(InferdError) as caught:
        compile_constraint(words[1], schema_constraint(SCHEMAS[name]))
    assert caught.value.reason is Reason.INVALID_PARAMETER
    assert caught.value.violations[0].field == "output.constraint.json_schema"
    assert REFUSED[name] in caught.value.violations[0].description


PLACES = {
    "/properties/a": {"type": "object", "properties": {"a": {"type": "strin"}}},
    "/items/anyOf/1": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"pattern": "(["}]}},
    "/$defs/n/properties/v": {
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"properties": {"k": {"$ref": "#/$defs/n"}, "v": {"not": {}}}}},
    },
    "/properties/a~1b~0c/prefixItems/0": {"properties": {"a/b~c": {"prefixItems": [{"$ref": "#/nowhere"}]}}},
    "/additionalProperties": {"type": "object", "additionalProperties": {"format": "nope", "type": "string"}},
    "/properties/x/multipleOf-is-too-fine": {"properties": {"x": {"type": "number", "multipleOf": 0.000123457}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_an_error_in_a_schema_has_its_place(place: str, words: tuple[Tokenizer, LLTokenizer]) -> None:
    with pytest.raises(InferdError) as caught:
        compile_constraint(words[1], schema_constraint(PLACES[place]))
    assert f"at {place.removesuffix('/multipleOf-is-too-fine')}: " in caught.value.violations[0].description
