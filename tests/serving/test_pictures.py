"""Pictures of prompts: few at a time, a bounded number in line, and nothing is done for who has left."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.registry import entry
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.generation import ChatPrompt, Message, RawPrompt, Role
from inferd_server.core.media import Blob, MediaKind, MediaLimits, Picture
from inferd_server.core.model import Capability
from inferd_server.serving.pictures import MAX_HELD_NBYTES, MAX_PROMPTS, THREADS, Pictures
from support.odd_images import quarters, saved

PNG = saved(quarters(), "PNG")
TOKENIZER: Any = SimpleNamespace(picture_mark="<image>")
SEES = entry("eyes", capabilities=frozenset({Capability.CHAT, Capability.VISION}))


def prompt(*images: bytes, kind: MediaKind = MediaKind.IMAGE, **limits: int) -> ChatPrompt:
    blobs = tuple(Blob(kind, "image/png", data, f"image[{i}]") for i, data in enumerate(images))
    return ChatPrompt((Message(Role.USER, blobs),), media_limits=MediaLimits(**limits))


class Reader:
    """A model's processor that waits until it may go on.

    Attributes:
        read_by: the thread of each prompt.
    """

    placeholders = frozenset({7})

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.is_reading = threading.Semaphore(0)
        self.read_by: list[str] = []

    def read(self, pictures: Sequence[Picture], mark: str) -> Any:
        self.read_by.append(threading.current_thread().name)
        self.is_reading.release()
        assert self.may_go_on.wait(20)
        return list(pictures), mark


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.may_go_on.set()


@pytest.fixture
def pictures(reader: Reader) -> Iterator[Pictures]:
    made: Any = lambda _: reader  # noqa: E731
    pictures = Pictures(made)
    yield pictures
    pictures.close()


async def read(pictures: Pictures, asked: Any, held: Sequence[int] = ()) -> Any:
    return await pictures.read(asked, SEES, TOKENIZER, held)


async def test_a_prompt_without_pictures_needs_no_processor(pictures: Pictures, reader: Reader) -> None:
    assert await read(pictures, RawPrompt("x")) is None
    assert await read(pictures, prompt()) is None
    assert reader.read_by == []


async def test_pictures_are_decoded_and_read_on_threads_of_their_own(pictures: Pictures, reader: Reader) -> None:
    reader.may_go_on.set()
    (picture, other), mark = await read(pictures, prompt(PNG, PNG))
    assert (picture == other, picture.width, mark) == (True, 32, "<image>")
    assert [name.startswith("pictures") for name in reader.read_by] == [True]


async def test_a_flood_takes_few_threads_and_a_bounded_line(pictures: Pictures, reader: Reader) -> None:
    flood = [asyncio.create_task(read(pictures, prompt(PNG))) for _ in range(MAX_PROMPTS)]
    await asyncio.to_thread(lambda: [reader.is_reading.acquire(timeout=20) for _ in range(THREADS)])
    with pytest.raises(InferdError) as caught:
        await read(pictures, prompt(PNG))
    assert caught.value.reason is Reason.QUEUE_FULL
    assert len(reader.read_by) == THREADS
    reader.may_go_on.set()
    await asyncio.gather(*flood)
    assert len(reader.read_by) == MAX_PROMPTS
    assert len(set(reader.read_by)) <= THREADS


async def test_who_leaves_the_line_gives_a_place_free_and_is_not_served(pictures: Pictures, reader: Reader) -> None:
    flood = [asyncio.create_task(read(pictures, prompt(PNG))) for _ in range(MAX_PROMPTS)]
    await asyncio.to_thread(lambda: [reader.is_reading.acquire(timeout=20) for _ in range(THREADS)])
    flood[-1].cancel()
    await asyncio.wait(flood[-1:])
    late = asyncio.create_task(read(pictures, prompt(PNG)))
    reader.may_go_on.set()
    await asyncio.gather(*flood[:-1], late)
    assert len(reader.read_by) == MAX_PROMPTS


async def test_who_leaves_while_an_image_is_decoded_stops_before_the_next(
    pictures: Pictures, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferd_server.media import decoding

    decoded, is_decoding, may_go_on = [], threading.Event(), threading.Event()
    to_picture = decoding.pixels.to_picture

    def slowly(header: Any) -> Picture:
        decoded.append(header)
        is_decoding.set()
        assert may_go_on.wait(20)
        return to_picture(header)

    monkeypatch.setattr(decoding.pixels, "to_picture", slowly)
    task = asyncio.create_task(read(pictures, prompt(PNG, PNG, PNG)))
    await asyncio.to_thread(is_decoding.wait, 20)
    task.cancel()
    await asyncio.wait([task])
    may_go_on.set()
    reader.may_go_on.set()
    # With both threads free again, what comes later is served, and nothing else was.
    await asyncio.gather(*(read(pictures, prompt(PNG)) for _ in range(THREADS)))
    assert (len(decoded), len(reader.read_by)) == (1 + THREADS, THREADS)


async def test_more_than_may_be_held_is_refused(pictures: Pictures) -> None:
    with pytest.raises(InferdError) as caught:
        await read(pictures, prompt(PNG), [MAX_HELD_NBYTES, 1])
    assert caught.value.reason is Reason.QUEUE_FULL


async def test_a_callers_limits_hold(pictures: Pictures) -> None:
    with pytest.raises(InferdError) as caught:
        await read(pictures, prompt(PNG, max_image_pixels=700))
    assert caught.value.reason is Reason.INVALID_PARAMETER


async def test_other_media_are_a_missing_capability(pictures: Pictures) -> None:
    with pytest.raises(InferdError) as caught:
        await read(pictures, prompt(PNG, kind=MediaKind.AUDIO))
    assert (caught.value.reason, caught.value.facts["capability"]) == (Reason.CAPABILITY_MISSING, "audio")
