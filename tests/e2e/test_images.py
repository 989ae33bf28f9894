"""Odd and hostile images over a real socket to a model that sees: the right picture or a typed refusal, and the server
goes on as if nothing had happened."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.media.decoding import decode
from support import tiny_vlm
from support.calls import SERVING, Peer, failure_of, is_idle, read_until, streamed, unary
from support.odd_images import Odd, gallery, huge_png, quarters, saved
from support.servers import ServerProcess, serving, write_config
from support.wire import fields_of, reason_of

LARGE = saved(quarters(size=(4000, 4100)), "PNG")
"""Nearly as many pixels as an image may have: the better part of a second to decode."""
GROWTH_NBYTES = 1_200_000_000
"""Two images decoding at a time, of 16 million pixels and 23 bytes each, and what comes with them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("images")
    tiny_vlm.build(folder / "eyes", context=1_000_000)
    models = [
        {"name": "eyes", "path": folder / "eyes", "preload": True},
        {"name": "blind", "path": tiny_model, "preload": True},
    ]
    config = write_config(folder, models, budget_gb=1, server={"drain_timeout_s": 1, "max_message_mib": 256})
    with serving(config) as server:
        server.wait_until_ready()
        yield server
        server.close()
        assert server.wait() == 0


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as connection:
        yield connection


def asked(*images: bytes, mime_type: str = "application/octet-stream", max_tokens: int = 4) -> inf.GenerateRequest:
    """What the model is asked about images."""
    request = unary("eyes", chat=[("user", "what?")], max_tokens=max_tokens, ignore_eos=True, return_ids=True)
    parts = [gen.ContentPart(image=gen.Blob(mime_type=mime_type, data=data)) for data in images]
    request.chat.messages[0].parts.extend(parts)
    return request


def as_plain_png(odd: Odd) -> bytes:
    """The picture that an image becomes, as the plainest file that there is."""
    from PIL import Image

    (picture,) = decode([Blob(MediaKind.IMAGE, odd.mime_type, odd.data, "")], MediaLimits())
    return saved(Image.frombytes("RGB", (picture.width, picture.height), picture.rgb), "PNG")


def by_eight(odds: list[Odd]) -> list[list[Odd]]:
    """So many at the same time."""
    return [odds[at : at + 8] for at in range(0, len(odds), 8)]


async def outcome(peer: Peer, request: inf.GenerateRequest) -> list[int] | grpc.aio.AioRpcError:
    """The tokens of an answer, or the error."""
    try:
        return list((await peer.inference.Generate(request, timeout=60)).token_ids)
    except grpc.aio.AioRpcError as error:
        return error


async def test_a_sound_image_is_answered_as_the_plain_file_of_its_picture(peer: Peer) -> None:
    sound = [odd for odd in gallery() if odd.size]
    for some in by_eight(sound):
        odds = await asyncio.gather(*(outcome(peer, asked(odd.data, mime_type=odd.mime_type)) for odd in some))
        plain = await asyncio.gather(*(outcome(peer, asked(as_plain_png(odd))) for odd in some))
        for odd, found, expected in zip(some, odds, plain, strict=True):
            if isinstance(found, grpc.aio.AioRpcError):  # the model's processor takes no picture 200 times as long
                assert "strip" in odd.name, odd.name
                assert isinstance(expected, grpc.aio.AioRpcError)
                assert reason_of(found) == reason_of(expected) == "INVALID_PARAMETER", odd.name
            else:
                assert found == expected, odd.name


async def test_a_hostile_image_is_refused_and_the_next_request_answered(server: ServerProcess, peer: Peer) -> None:
    before = server.rss_nbytes
    expected = await outcome(peer, asked(saved(quarters(), "PNG")))
    hostile = [odd for odd in gallery() if not odd.size]
    for some in by_eight(hostile):
        errors = await asyncio.gather(*(outcome(peer, asked(odd.data, mime_type=odd.mime_type)) for odd in some))
        for odd, error in zip(some, errors, strict=True):
            assert isinstance(error, grpc.aio.AioRpcError), odd.name
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (odd.name, error)
            assert reason_of(error) == "INVALID_PARAMETER", (odd.name, error)
            assert all(field.startswith("chat.messages[0].parts[1].image.") for field in fields_of(error)), odd.name
        assert await outcome(peer, asked(saved(quarters(), "PNG"))) == expected
    assert server.rss_nbytes - before < 300_000_000
    await peer.wait_for_model("eyes", is_idle)


@pytest.mark.long
async def test_a_budget_bomb_of_200_megabytes_is_refused_before_anything_is_decoded(
    server: ServerProcess, peer: Peer
) -> None:
    bomb = huge_png(4000, 4000) + bytes(12 * 2**20 + 500_000)
    request = asked(*[bomb] * 16)
    assert request.ByteSize() > 200_000_000
    before = server.rss_nbytes
    error = await failure_of(peer.inference.Generate(request, timeout=60))
    assert reason_of(error) == "INVALID_PARAMETER"
    assert fields_of(error) == ["chat.messages"]
    assert "256000000 pixels in all; at most 33554432" in str(error.details())
    assert server.rss_nbytes - before < GROWTH_NBYTES
    assert isinstance(await outcome(peer, asked(saved(quarters(), "PNG"))), list)


async def test_limits_of_a_request_are_told_and_hold(peer: Peer) -> None:
    limits = (await peer.inference.GetServerInfo(inf.GetServerInfoRequest())).image_limits
    assert (limits.max_images, limits.max_request_pixels) == (16, 33_554_432)
    small = saved(quarters(), "PNG")
    error = await failure_of(peer.inference.Generate(asked(*[small] * 17)))
    assert (reason_of(error), fields_of(error)) == ("INVALID_PARAMETER", ["chat.messages"])
    error = await failure_of(peer.inference.Generate(asked(small, small + bytes(20 * 2**20))))
    assert fields_of(error) == ["chat.messages[0].parts[2].image.data"]


async def test_while_images_are_decoded_probes_answer_and_other_models_stream(peer: Peer) -> None:
    """By what happens between the sending of the images and their answer, not by a clock."""
    stream = peer.inference.StreamGenerate(streamed("blind", prompt="a", ignore_eos=True, max_tokens=100_000))
    streamed_so_far = await read_until(stream, "delta")
    answers = asyncio.gather(*(outcome(peer, asked(LARGE, LARGE)) for _ in range(3)))
    probes = deltas = 0
    while not answers.done():
        assert await peer.check("liveness") == await peer.check("inferd.v1.Model/blind") == SERVING
        probes += 1
        await read_until(stream, "delta", streamed_so_far)
        deltas += 1
    stream.cancel()
    assert all(isinstance(answer, list) for answer in await answers)
    assert min(probes, deltas) >= 5


async def test_a_caller_that_leaves_while_its_images_are_decoded_leaves_nothing_behind(peer: Peer) -> None:
    calls = [peer.inference.Generate(asked(LARGE, LARGE, max_tokens=10_000)) for _ in range(8)]
    answered = asyncio.create_task(outcome(peer, asked(saved(quarters(), "PNG"))))
    for call in calls:
        call.cancel()
    assert isinstance(await answered, list)
    await peer.wait_for_model("eyes", is_idle)
