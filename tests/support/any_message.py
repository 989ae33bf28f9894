"""Messages of any kind, made from their descriptors: a field that the contract gains is covered without a word here."""

import random
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

DEPTH = 4
MOST_FIELDS = 4
"""Of one message, beside what names something and one member of each choice: with all of them none would be valid."""
NAMES = ("one", "two", "tiny", "small")
NEEDED = ("query", "documents")
TEXTS = (
    *("", "x", "hello " * 50, "\x00", "\n", "ä" * 70, "🏴‍☠️", "\u202e", "</s>", "<|im_start|>", "{{ 1/0 }}", "a" * 5000),
    *("{}", "[]", "null", "{", '{"a": {"b": [1, 2, NaN]}}', '{"type": "object", "properties": {"a": {"$ref": "#"}}}'),
    *('{"type": "string", "pattern": "(a+)+$"}', "[" * 3000, "(a|b)*c", "(", "start: start", 'start: "a" | "b"'),
    *("image/png", "text/plain", "../../etc/passwd", "%s%n", "-1", "1e999", "Infinity"),
)
PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 40
BLOBS = (PNG, b"", b"\xff\xd8\xff\xe0" + b"\x00" * 40, b"GIF89a" + b"\xff" * 20, b"\x00" * 3)
FLOATS = (0.0, -1.0, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))
NUMBERS = (0, -1, 1, 100, 127, 255, 256, 300, 65_536, 2**31 - 1, -(2**31))
_KIND = FieldDescriptor
_INTEGERS = {
    _KIND.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _KIND.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _KIND.CPPTYPE_UINT32: (0, 2**32 - 1),
    _KIND.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _plain(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values that somebody might mean."""
    if field.cpp_type in _INTEGERS:
        return st.integers(1, 20)
    if field.cpp_type == _KIND.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values if value.number])
    if field.type == _KIND.TYPE_BYTES:
        return st.just(PNG)
    if field.cpp_type == _KIND.CPPTYPE_STRING:
        if field.name.endswith(("_json", "_schema")):
            return st.sampled_from(['{"type": "object"}', "{}"])
        return st.sampled_from(NAMES if field.name in {"model", "name"} else ("x", "a", "hello"))
    return st.booleans() if field.cpp_type == _KIND.CPPTYPE_BOOL else st.sampled_from([0.5, 1.0])


def _odd(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values that nobody means."""
    if field.cpp_type in _INTEGERS:
        low, high = _INTEGERS[field.cpp_type]
        return st.sampled_from([n for n in (*NUMBERS, low, high) if low <= n <= high]) | st.integers(low, high)
    if field.cpp_type == _KIND.CPPTYPE_ENUM:
        return st.sampled_from([0, -1, 99, 2**31 - 1])
    if field.type == _KIND.TYPE_BYTES:
        return st.sampled_from(BLOBS) | st.binary(max_size=30)
    if field.cpp_type == _KIND.CPPTYPE_STRING:
        return st.sampled_from(TEXTS) | st.text(max_size=8)
    width = 32 if field.cpp_type == _KIND.CPPTYPE_FLOAT else 64
    return st.booleans() if field.cpp_type == _KIND.CPPTYPE_BOOL else st.sampled_from(FLOATS) | st.floats(width=width)


@cache
def _value(field: FieldDescriptor, odd: bool, depth: int) -> st.SearchStrategy[Any]:
    """One value of a field; where `odd`, one of three is."""
    if field.cpp_type == _KIND.CPPTYPE_MESSAGE:
        return messages(field.message_type, odd, depth - 1)
    return st.one_of(_plain(field), _plain(field), _odd(field)) if odd else _plain(field)


@cache
def _field(field: FieldDescriptor, odd: bool, depth: int) -> st.SearchStrategy[Any]:
    """What a message's constructor takes for a field."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_value(field.message_type.fields_by_name[name], odd, depth) for name in ("key", "value"))
        return st.dictionaries(key, value, max_size=3)
    value = _value(field, odd, depth)
    return st.lists(value, min_size=0 if odd else 1, max_size=3) if field.is_repeated else value


@cache
def messages(kind: Descriptor, odd: bool, depth: int = DEPTH) -> st.SearchStrategy[Message]:
    """Messages of a kind with some of its fields set, so deep at most; with `odd` values or without."""
    make = GetMessageClass(kind)
    fields = [field for field in kind.fields if depth > 0 or field.message_type is None]
    named = [field for field in fields if field.name in {"model", "name"}]
    alone = [field for field in fields if field.containing_oneof is None]
    # What a message says first is what it needs most, but for those that need more.
    usual = [*named, *alone[:2], *(field for field in alone if field.name in NEEDED)]
    choices = [[field for field in each.fields if field in fields] for each in kind.oneofs if len(each.fields) > 1]

    @st.composite
    def message(draw: st.DrawFn) -> Message:
        chosen = {field.name: field for field in (named if odd else usual) if not odd or draw(st.integers(0, 7))}
        for members in filter(None, choices):
            field = draw(st.sampled_from(members))
            chosen[field.name] = field
        more = fields if odd else alone
        rest = st.lists(st.sampled_from(more), max_size=MOST_FIELDS) if more else st.just([])
        chosen |= {field.name: field for field in draw(rest)}
        return make(**{name: draw(_field(field, odd, depth)) for name, field in chosen.items()})

    return message()


def mutate(data: bytes, dice: random.Random) -> bytes:
    """The same bytes with a few things wrong."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 2)):
        where, size = dice.randint(0, len(changed)), dice.randint(1, 8)
        match dice.randint(0, 5):
            case 0:  # a bit flipped
                if where < len(changed):
                    changed[where] ^= 1 << dice.randint(0, 7)
            case 1:  # bytes gone
                del changed[where : where + size]
            case 2:  # others between
                changed[where:where] = dice.randbytes(size)
            case 3:  # some twice
                changed[where:where] = changed[where : where + size]
            case 4:  # cut
                del changed[where:]
            case _:  # the largest number
                changed[where : where + 1] = b"\xff" * 9 + b"\x01"
    return bytes(changed)
