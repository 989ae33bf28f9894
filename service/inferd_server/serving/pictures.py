"""The pictures of prompts: decoded, and read by their model's processor, both off the event loop and few at a time."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from inferd_server.core.errors import FieldViolation, capability_missing, invalid_parameter, queue_full
from inferd_server.core.generation import ChatPrompt, Prompt
from inferd_server.core.media import Blob, MediaKind, MediaLimits
from inferd_server.core.model import Capability, ModelEntry
from inferd_server.media.decoding import decode
from inferd_server.text.texts import PerModel
from inferd_server.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from inferd_server.engine.vision_inputs import PictureReader, ReadPictures  # it imports mlx_vlm

THREADS = 2
"""Prompts whose pictures are decoded and read at a time: so many have their pixels in memory."""
MAX_PROMPTS = 64
"""Prompts whose pictures are decoded and read or wait for it."""
MAX_HELD_NBYTES = 2**31
"""Bytes of read pictures that all requests in flight may hold when one more comes."""


class Pictures:
    """Lives on the event loop.

    Args:
        load: a model's processor; blocking. It may import what takes a while.
    """

    def __init__(self, load: "Callable[[ModelEntry], PictureReader]") -> None:
        self._readers: PerModel[PictureReader] = PerModel(load)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="pictures")
        self._prompts = 0

    async def read(
        self, prompt: Prompt, entry: ModelEntry, tokenizer: Tokenizer, held_nbytes: Iterable[int]
    ) -> "ReadPictures | None":
        """The pictures of a prompt, as its model reads them; None where it has none.

        Args:
            held_nbytes: what each request in flight holds already.

        Raises:
            InferdError: CAPABILITY_MISSING, INVALID_PARAMETER (see media.decoding), MODEL_UNSUPPORTED (the processor
                can't be used), or QUEUE_FULL where too many pictures are in the house.
        """
        blobs = prompt.blobs if isinstance(prompt, ChatPrompt) else ()
        if not blobs:
            return None
        assert isinstance(prompt, ChatPrompt)
        _check_capabilities(blobs, entry)
        if self._prompts >= MAX_PROMPTS or sum(held_nbytes) > MAX_HELD_NBYTES:
            raise queue_full("", MAX_PROMPTS)
        self._prompts += 1
        is_over = threading.Event()
        try:
            reader = await self._readers.get(entry)
            work = (reader, blobs, prompt.media_limits, tokenizer.picture_mark, is_over)
            return await asyncio.get_running_loop().run_in_executor(self._pool, _read, *work)
        finally:
            is_over.set()
            self._prompts -= 1

    async def check_ids(self, ids: Sequence[int], entry: ModelEntry, field: str) -> None:
        """Refuse ids given by a caller that stand for pictures, since none come with them.

        Raises:
            InferdError: INVALID_PARAMETER.
        """
        if Capability.VISION not in entry.capabilities:
            return
        reader = await self._readers.get(entry)
        if not reader.placeholders.isdisjoint(ids):
            text = "holds a token that stands for a picture; pictures are parts of a chat's messages"
            raise invalid_parameter([FieldViolation(field, text)])

    def forget(self, name: str) -> None:
        """Drop the processor of the model `name`."""
        self._readers.forget(name)

    def close(self) -> None:
        """End the threads behind what they are doing; nothing is read afterwards."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _read(
    reader: "PictureReader", blobs: Sequence[Blob], limits: MediaLimits, mark: str, is_over: threading.Event
) -> "ReadPictures | None":
    """The pictures; None where the request ended meanwhile, behind the image that was being decoded."""
    pictures = decode(blobs, limits, lambda: not is_over.is_set())
    return None if is_over.is_set() else reader.read(pictures, mark)


def _check_capabilities(blobs: Sequence[Blob], entry: ModelEntry) -> None:
    for blob in blobs:
        capability = Capability.VISION.value if blob.kind is MediaKind.IMAGE else blob.kind.value
        if capability not in entry.capabilities:
            text = f"model {entry.name!r} can't serve {blob.field}: capability {capability!r} is missing"
            raise capability_missing(entry.name, capability, text)
