"""JSON Schemas of the kinds that people use, by name."""

from typing import Any

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
NULL = {"type": "null"}


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others, all of them required unless told."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def array(items: dict[str, Any], **bounds: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


ADDRESS = record(street=STRING, city=STRING, zip={"type": "string", "pattern": "^[0-9]{5}$"})
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record(["value"], value=INTEGER, children=array({"$ref": "#/$defs/node"}, maxItems=2))},
}

SCHEMAS: dict[str, dict[str, Any]] = {
    "a string": STRING,
    "an integer": INTEGER,
    "a number": NUMBER,
    "a boolean": BOOLEAN,
    "null": NULL,
    "anything": {},
    "several types": {"type": ["string", "integer", "null"]},
    "constant string": {"const": "yes"},
    "constant object": {"const": {"a": [1, None, True], "b": 'ü"\\'}},
    "enumeration of strings": {"enum": ["red", "green", "blue"]},
    "enumeration of all kinds": {"enum": ["a", 1, 2.5, None, True, [1], {"k": "v"}]},
    "enumeration with a type": {"type": "string", "enum": ["a b", "c/d", 'e"f', "g\\h", "\n", "世界"]},
    "enumeration of 500": {"enum": [f"value {i}" for i in range(500)]},
    "person": record(name=STRING, age=INTEGER, tags=array(STRING, maxItems=3)),
    "optional properties": record(["id"], id=INTEGER, note=STRING, size=NUMBER),
    "only optional properties": record([], a=INTEGER, b=BOOLEAN),
    "no properties": record(),
    "additional properties of a type": {"type": "object", "additionalProperties": INTEGER},
    "additional properties beside some": {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
    "pattern properties": {"type": "object", "patternProperties": {"^x_": INTEGER}, "additionalProperties": False},
    "property names with odd characters": record(**{"a b": INTEGER, 'c"d': BOOLEAN, "e/f": NULL, "ü": NULL, "": NULL}),
    "nested three deep": record(a=record(b=record(c=BOOLEAN, d=array(INTEGER, maxItems=2)))),
    "nested ten deep": {},
    "array with bounds": array(INTEGER, minItems=2, maxItems=4),
    "array of exactly three": array(BOOLEAN, minItems=3, maxItems=3),
    "empty array only": array(STRING, maxItems=0),
    "array of arrays": array(array(INTEGER, maxItems=2), maxItems=3),
    "array of objects": array(record(x=NUMBER, y=NUMBER), minItems=1, maxItems=3),
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER, BOOLEAN], "items": False, "minItems": 3},
    "tuple with a tail": {"type": "array", "prefixItems": [STRING], "items": INTEGER, "maxItems": 4},
    "unique items": array(INTEGER, uniqueItems=True, maxItems=3),
    "contains": {"type": "array", "contains": INTEGER},
    "string lengths": {"type": "string", "minLength": 3, "maxLength": 8},
    "string of one character": {"type": "string", "minLength": 1, "maxLength": 1},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "pattern in the middle": {"type": "string", "pattern": "[a-m]"},
    "pattern with classes": {"type": "string", "pattern": "^\\d{3}-\\w+$"},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "date-time": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "duration": {"type": "string", "format": "duration"},
    "e-mail": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uri": {"type": "string", "format": "uri"},
    "hostname": {"type": "string", "format": "hostname"},
    "unknown format": {"type": "string", "format": "phone-of-mars"},
    "integer bounds": {"type": "integer", "minimum": -5, "maximum": 120},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "number bounds": {"type": "number", "minimum": -0.5, "maximum": 1.25},
    "exclusive number bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "lower bound alone": {"type": "number", "minimum": 1000},
    "multiple": {"type": "integer", "multipleOf": 7},
    "fractional multiple": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 3},
    "bounded multiple": {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 100},
    "any of": {"anyOf": [STRING, INTEGER, array(INTEGER, maxItems=2)]},
    "any of records": {"anyOf": [record(cat=BOOLEAN), record(dog=INTEGER)]},
    "nullable": record(value={"anyOf": [INTEGER, NULL]}),
    "one of by type": {"oneOf": [STRING, INTEGER]},
    "one of by a tag": {
        "oneOf": [
            record(kind={"const": "circle"}, radius=NUMBER),
            record(kind={"const": "square"}, side=NUMBER),
        ]
    },
    "one of that overlap": {"oneOf": [NUMBER, INTEGER]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"type": "object", "properties": {"b": BOOLEAN}, "required": ["b"]},
        ]
    },
    "all of bounds": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "not": {"not": STRING},
    "if then else": {"if": {"type": "string"}, "then": {"minLength": 3}, "else": {"minimum": 1}},
    "dependent": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "property count": {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2},
    "definitions": {
        **record(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address"}),
        "$defs": {"address": ADDRESS},
    },
    "old definitions": {**record(a={"$ref": "#/definitions/a"}), "definitions": {"a": array(INTEGER, maxItems=2)}},
    "recursive": TREE,
    "recursive list": {
        "$ref": "#/$defs/l",
        "$defs": {"l": {"anyOf": [NULL, record(head=INTEGER, tail={"$ref": "#/$defs/l"})]}},
    },
    "recursive at the top": record([], next={"$ref": "#"}),
    "reference with a sibling": {"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer", "minimum": 1}}},
    "remote reference": {"$ref": "https://example.com/schema.json"},
    "200 properties": record(**{f"field_{i}": (INTEGER, BOOLEAN, NULL)[i % 3] for i in range(200)}),
    "200 optional properties": record([], **{f"field_{i}": (INTEGER, BOOLEAN)[i % 2] for i in range(200)}),
    "titles and descriptions": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/thing",
        "title": "Thing",
        "description": "A thing.",
        **record(name={**STRING, "description": "its name", "examples": ["x"], "default": "y"}),
        "$comment": "nothing",
    },
    "tool call": record(
        name={"enum": ["get_weather", "search"]},
        arguments={
            "anyOf": [record(city=STRING, unit={"enum": ["C", "F"]}), record(query={"type": "string", "maxLength": 20})]
        },
    ),
    "invoice": record(
        number={"type": "string", "pattern": "^INV-[0-9]{6}$"},
        issued={"type": "string", "format": "date"},
        lines=array(
            record(
                sku=STRING,
                count={"type": "integer", "minimum": 1, "maximum": 99},
                price={"type": "number", "minimum": 0},
            ),
            minItems=1,
            maxItems=3,
        ),
        paid=BOOLEAN,
    ),
    "llguidance's own options": {
        "x-guidance": {"lenient": True, "item_separator": ";"},
        **array(INTEGER, minItems=2, maxItems=3),
    },
}

for _ in range(10):
    SCHEMAS["nested ten deep"] = record(inner=SCHEMAS["nested ten deep"] or BOOLEAN)

REFUSED = {
    "unique items": "uniqueItems",
    "contains": "contains",
    "unknown format": "Unknown format: phone-of-mars",
    "one of that overlap": "oneOf constraints are not supported",
    "not": "not",
    "if then else": "if",
    "dependent": "dependentRequired",
    "remote reference": "https://example.com/schema.json",
}
"""What can't be enforced, and a word that the refusal has to hold."""
