"""Compiling constraints off the event loop, each once while it is in use.

Within bounds on the stack (a chain of a thousand rules recurses as deep, and an overflow kills the process) and on the
time that is waited. Requests that come together with one constraint also go on together: their prompts share a piece of
prefill, which would cost as much for each of them if their compilations ended one after the other.
"""

import asyncio
import atexit
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import llguidance

from inferd_server.core.constraints import Constraint
from inferd_server.core.errors import InferdError

from .grammars import CompiledGrammar, build_vocabulary, check_size, compile_constraint, invalid, size
from .tokenizer import Tokenizer

COMPILE_SECONDS = 5.0
"""Waited for a compilation, which takes 1-100 ms; the tokenizer's part, once for each, is extra."""
CONCURRENT_COMPILATIONS = 4
STACK_NBYTES = 512 << 20
"""Address space; what is not touched costs nothing. The longest chain of references that fits a source needs 100 MB."""
MAX_KEPT = 16
"""Compiled constraints kept for each tokenizer; the least recently used goes."""
KEPT_CHARACTERS = 32_768
"""Longer sources are compiled anew for each request: the largest ones take some 5 MB each."""
END_SECONDS = 5.0
"""Waited for running compilations when the process ends."""

_THREAD_NAME = "inferd constraint"


@dataclass(slots=True)
class _Words:
    """A tokenizer's tokens as llguidance keeps them, and what was compiled for them."""

    vocabulary: "asyncio.Task[llguidance.LLTokenizer]"
    compiled: OrderedDict[Constraint, "asyncio.Future[CompiledGrammar]"] = field(default_factory=OrderedDict)

    def keep(self, constraint: Constraint, future: "asyncio.Future[CompiledGrammar]") -> None:
        self.compiled[constraint] = future
        future.add_done_callback(lambda _: self._settle(constraint, future))
        while len(self.compiled) > MAX_KEPT:
            self.compiled.popitem(last=False)

    def _settle(self, constraint: Constraint, future: "asyncio.Future[CompiledGrammar]") -> None:
        # Asking for the exception also tells asyncio that it was seen, should all who waited have left.
        is_of_use = future.exception() is None and size(constraint) <= KEPT_CHARACTERS
        if not is_of_use and self.compiled.get(constraint) is future:
            del self.compiled[constraint]


class Constraints:
    """Compiles constraints off the event loop. `compile` runs on the loop."""

    def __init__(self) -> None:
        self._words: WeakKeyDictionary[Tokenizer, _Words] = WeakKeyDictionary()
        self._places = asyncio.Semaphore(CONCURRENT_COMPILATIONS)

    async def compile(self, tokenizer: Tokenizer, constraint: Constraint) -> CompiledGrammar:
        """Compile a constraint for a tokenizer.

        Raises:
            InferdError: INVALID_PARAMETER with the place of the error; CAPABILITY_MISSING where the tokenizer's tokens
                have no exact bytes.
        """
        check_size(constraint)
        words = self._words_of(tokenizer)
        vocabulary = await asyncio.shield(words.vocabulary)
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                return await self._compiled(words, vocabulary, constraint)
        except TimeoutError:
            raise invalid(constraint, f"takes longer than {COMPILE_SECONDS:g} s to compile") from None

    def _words_of(self, tokenizer: Tokenizer) -> _Words:
        """Built once (0.3-1 s for 49,000 tokens)."""
        words = self._words.get(tokenizer)
        if words is None or _has_failed(words.vocabulary):
            task = asyncio.create_task(asyncio.to_thread(build_vocabulary, tokenizer), name="grammar vocabulary")
            words = self._words[tokenizer] = _Words(task)
        return words

    async def _compiled(
        self, words: _Words, vocabulary: llguidance.LLTokenizer, constraint: Constraint
    ) -> CompiledGrammar:
        """What was compiled, or is being, for another request; else compiled now."""
        if constraint not in words.compiled:
            await self._places.acquire()
            if constraint in words.compiled:
                self._places.release()
            else:
                words.keep(constraint, self._start(lambda: compile_constraint(vocabulary, constraint)))
        words.compiled.move_to_end(constraint)
        return await asyncio.shield(words.compiled[constraint])

    def _start(self, work: Callable[[], CompiledGrammar]) -> "asyncio.Future[CompiledGrammar]":
        """Have `work` done in a thread with a deep stack. The place acquired for it is taken until it ends, however
        long it is waited for; the thread is a daemon, so that none keeps the process from ending."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[CompiledGrammar] = loop.create_future()

        def settle(outcome: CompiledGrammar | Exception) -> None:
            self._places.release()
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
        return future


def _has_failed(task: "asyncio.Task[Any]") -> bool:
    return task.cancelled() or (task.done() and task.exception() is not None)


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
