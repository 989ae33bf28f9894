"""Images in messages, from bytes and from files."""

from pathlib import Path
from typing import Any

import pytest

from fakes.wire_server import WireServer
from inferd.v1 import generation_pb2, inference_service_pb2
from inferd_client import Image, ImageLimits, requests
from support.both_ways import BothWays

PNG, JPEG, GIF, WEBP = b"\x89PNG\r\n\x1a\n...", b"\xff\xd8\xff...", b"GIF89a...", b"RIFF\0\0\0\0WEBP..."


def chat_of(*messages: Any) -> generation_pb2.ChatInput:
    return requests.generate("tiny", None, messages, None, {}).chat


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (WEBP, "image/webp"),
        (b"?", "application/octet-stream"),
    ],
)
def test_the_type_of_an_image_is_told_from_its_bytes(data: bytes, mime_type: str, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(data)
    assert Image.from_file(tmp_path / "image") == Image(data) == Image(bytearray(data)) == Image(data, mime_type)
    assert Image(data, "x/y").mime_type == "x/y"


def test_images_and_texts_keep_their_order() -> None:
    chat = chat_of(("user", [Image(PNG), "and", Image(JPEG)]), {"role": "tool", "content": Image(GIF)})
    blobs = [
        [(part.WhichOneof("content"), part.image.mime_type or part.text) for part in message.parts]
        for message in chat.messages
    ]
    assert blobs == [[("image", "image/png"), ("text", "and"), ("image", "image/jpeg")], [("image", "image/gif")]]
    assert chat.messages[0].parts[0].image.data == PNG


def test_a_path_is_no_image() -> None:
    with pytest.raises(TypeError, match=r"Image\.from_file takes a path"):
        Image("cat.png")  # type: ignore[arg-type]


async def test_a_server_tells_what_images_may_amount_to(server: WireServer, client: BothWays) -> None:
    limits = inference_service_pb2.ImageLimits(
        max_images=1, max_image_bytes=2, max_image_pixels=3, max_request_pixels=4
    )
    info = inference_service_pb2.GetServerInfoResponse
    server.script("GetServerInfo", info(image_limits=limits), info())
    assert (await client.call("server_info")).image_limits == ImageLimits(1, 2, 3, 4)
    assert (await client.call("server_info")).image_limits is None
