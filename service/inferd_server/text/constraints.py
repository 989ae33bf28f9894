"""Compiling constraints off the event loop.

Within bounds on the stack (a chain of a thousand rules recurses as deep, and an overflow kills the process) and on the
time that is waited.
"""

import asyncio
import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import llguidance

from inferd_server.core.constraints import Constraint
from inferd_server.core.errors import InferdError

from .grammars import CompiledGrammar, build_vocabulary, check_size, compile_constraint, invalid
from .tokenizer import Tokenizer

COMPILE_SECONDS = 5.0
"""Waited for a compilation, which takes 1-100 ms; the tokenizer's part, once for each, is extra."""
CONCURRENT_COMPILATIONS = 4
STACK_NBYTES = 512 << 20
"""Address space; what is not touched costs nothing. The longest chain of references that fits a source needs 100 MB."""
END_SECONDS = 5.0
"""Waited for running compilations when the process ends."""

_THREAD_NAME = "inferd constraint"


class Constraints:
    """Compiles constraints off the event loop. `compile` runs on the loop."""

    def __init__(self) -> None:
        self._vocabularies: WeakKeyDictionary[Tokenizer, asyncio.Task[llguidance.LLTokenizer]] = WeakKeyDictionary()
        self._places = asyncio.Semaphore(CONCURRENT_COMPILATIONS)

    async def compile(self, tokenizer: Tokenizer, constraint: Constraint) -> CompiledGrammar:
        """Compile a constraint for a tokenizer.

        Raises:
            InferdError: INVALID_PARAMETER with the place of the error; CAPABILITY_MISSING where the tokenizer's tokens
                have no exact bytes.
        """
        check_size(constraint)
        vocabulary = await asyncio.shield(self._vocabulary(tokenizer))
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                return await self._run(lambda: compile_constraint(vocabulary, constraint))
        except TimeoutError:
            raise invalid(constraint, f"takes longer than {COMPILE_SECONDS:g} s to compile") from None

    def _vocabulary(self, tokenizer: Tokenizer) -> "asyncio.Task[llguidance.LLTokenizer]":
        """The tokens as llguidance keeps them, built once (0.3-1 s for 49,000 tokens)."""
        task = self._vocabularies.get(tokenizer)
        if task is None or task.cancelled() or (task.done() and task.exception() is not None):
            task = asyncio.create_task(asyncio.to_thread(build_vocabulary, tokenizer), name="grammar vocabulary")
            self._vocabularies[tokenizer] = task
        return task

    async def _run(self, work: Callable[[], CompiledGrammar]) -> CompiledGrammar:
        """The result of `work`, done in a thread with a deep stack. Its place is taken until it ends, however long it
        is waited for; the thread is a daemon, so that none keeps the process from ending."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[CompiledGrammar] = loop.create_future()

        def settle(outcome: CompiledGrammar | Exception) -> None:
            self._places.release()
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        def run() -> None:
            outcome: CompiledGrammar | Exception = RuntimeError("a compilation broke off; its thread says why")
            try:
                outcome = work()
            except InferdError as refusal:
                outcome = refusal
            finally:
                with suppress(RuntimeError):  # the loop may be closed by now
                    loop.call_soon_threadsafe(settle, outcome)

        _start_deep(run)
        return await future


def _start_deep(run: Callable[[], Any]) -> None:
    before = threading.stack_size(STACK_NBYTES)
    try:
        threading.Thread(target=run, name=_THREAD_NAME, daemon=True).start()
    finally:
        threading.stack_size(before)


@atexit.register
def _let_compilations_end() -> None:
    """A process that ends while llguidance works may crash in its own teardown (seen: SIGSEGV); so wait a little."""
    deadline = time.monotonic() + END_SECONDS
    for thread in threading.enumerate():
        if thread.name == _THREAD_NAME:
            thread.join(max(0.0, deadline - time.monotonic()))
