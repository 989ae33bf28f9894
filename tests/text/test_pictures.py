"""How chat templates show pictures, and texts beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError
from inferd_server.core.generation import ChatPrompt, Message, Role
from inferd_server.core.media import Blob, MediaKind
from inferd_server.text.tokenizer import Tokenizer

PICTURE = Blob(MediaKind.IMAGE, "image/png", b"", "chat.messages[0].parts[0].image")
LOOP = "{% for m in messages %}{{ m.role + ': ' }}BODY{{ '\n' }}{% endfor %}"
PART = "{% if c.type == 'image' %}{{ '<image>' }}{% elif c.type == 'text' %}{{ c.text }}{% endif %}"
PARTS = "{% for c in m.content %}" + PART + "{% endfor %}"
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}"


def tokenizer_of(make_folder: Any, body: str) -> Tokenizer:
    folder: Path = make_folder(chat_template=LOOP.replace("BODY", body))
    return Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("body", "mark"),
    [
        (EITHER, "<image>"),
        (PARTS, "<image>"),
        (PARTS.replace("<image>", "\\n<v><image></v>\\n"), "\n<v><image></v>\n"),
        ("{{ m.content }}", ""),  # the list as Python writes it
        ("{{ m.content | tojson }}", ""),
        ("{{ m.content + '' }}", ""),
        (PARTS.replace("'<image>'", "'<image_' ~ loop.index ~ '>'"), ""),  # another mark for each picture
        (PARTS.replace("<image>", ""), ""),
        ("{{ raise_exception('no') }}", ""),
    ],
)
def test_a_templates_mark_is_found_by_trying(make_folder: Any, body: str, mark: str) -> None:
    assert tokenizer_of(make_folder, body).picture_mark == mark


@pytest.mark.parametrize("body", [EITHER, PARTS, "{{ m.content }}"])
def test_text_alone_is_never_dropped(make_folder: Any, body: str) -> None:
    rendered, _ = tokenizer_of(make_folder, body).encode_chat(ChatPrompt((Message(Role.USER, ("a", "b")),)))
    assert rendered == "user: ab\n"


@pytest.mark.parametrize("body", [EITHER, PARTS])
def test_pictures_stand_where_the_template_shows_them_and_nowhere_else(make_folder: Any, body: str) -> None:
    tokenizer = tokenizer_of(make_folder, body)
    shown = ChatPrompt((Message(Role.USER, ("a<image>", PICTURE, "b")), Message(Role.USER, (PICTURE,))))
    rendered, ids = tokenizer.encode_chat(shown, pictures=("[1]", "[2]"))
    assert rendered == "user: a<image><image>b\nuser: <image>\n"
    assert tokenizer.decode(ids) == "user: a<image>[1]b\nuser: [2]\n"


def test_a_picture_that_the_template_does_not_show_is_an_error(make_folder: Any) -> None:
    template = "{% if m.role == 'user' %}" + EITHER + "{% endif %}"
    chat = ChatPrompt((Message(Role.USER, (PICTURE,)), Message(Role.TOOL, (PICTURE,))))
    with pytest.raises(InferdError) as caught:
        tokenizer_of(make_folder, template).encode_chat(chat, pictures=("[1]", "[2]"))
    assert json.dumps([v.description for v in caught.value.violations]).count("shows 1 of 2 pictures") == 1
