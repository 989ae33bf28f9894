"""Decoding off the event loop: few threads of its own, images one by one, and a bounded number of requests in line."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from inferd_server.core.errors import queue_full
from inferd_server.core.media import Blob, MediaLimits, Picture

from .decoding import read_headers, to_picture

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

THREADS = 2
"""Threads, and with them the pixels that are being decoded at a time: a flood of images takes no others."""
MAX_REQUESTS = 64
"""Requests whose images are being decoded or wait for it."""


class Decoder:
    """Turns the images of requests into pictures. Lives on the event loop."""

    def __init__(self, *, threads: int = THREADS, max_requests: int = MAX_REQUESTS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="images")
        self._max_requests = max_requests
        self._requests = 0

    async def decode(self, blobs: Sequence[Blob], limits: MediaLimits) -> tuple[Picture, ...]:
        """The pictures of one request. Requests take turns image by image; a cancelled one ends behind the image that
        is being decoded.

        Raises:
            InferdError: INVALID_PARAMETER (see decoding.decode), or QUEUE_FULL where too many are in line.
        """
        if self._requests >= self._max_requests:
            raise queue_full("", self._max_requests)
        self._requests += 1
        try:
            headers = await self._run(read_headers, blobs, limits)
            pairs = zip(blobs, headers, strict=True)
            return tuple([await self._run(to_picture, blob, header) for blob, header in pairs])
        finally:
            self._requests -= 1

    def close(self) -> None:
        """End the threads behind what they are doing; nothing is decoded afterwards."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[Arguments, Result], *args: Arguments.args, **_: Arguments.kwargs) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)
