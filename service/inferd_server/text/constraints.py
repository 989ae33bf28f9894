"""Constraints compiled for a model's tokens with llguidance, and followed token by token.

A compiler of other people's grammars is given bounds: on the source, on what its automata may grow to, on the stack (a
chain of ten thousand rules recurses as deep, and an overflow kills the process) and on the time that is waited for it.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import llguidance
import llguidance.hf

from inferd_server.core.constraints import Constraint, ConstraintBroken, ConstraintKind
from inferd_server.core.errors import FieldViolation, InferdError, capability_missing, invalid_parameter

from .schema_places import compile_schema
from .tokenizer import Tokenizer

MAX_CHARACTERS = {
    ConstraintKind.JSON_SCHEMA: 131_072,
    ConstraintKind.REGEX: 8_192,
    ConstraintKind.LARK_GRAMMAR: 32_768,
    ConstraintKind.CHOICE: 262_144,
}
"""Longest source of each kind; a choice's is all of its options together."""
MAX_OPTIONS = 1024
COMPILE_SECONDS = 5.0
"""Waited for a compilation, which takes 1-100 ms; the tokenizer's part, once for each, is extra."""
CONCURRENT_COMPILATIONS = 4
STACK_NBYTES = 512 << 20
"""Address space; what is not touched costs nothing. The longest chain of references that fits a source needs 100 MB."""

# The defaults allow five seconds and hundreds of megabytes for a single token. These keep the worst one under 0.2 s.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=100_000, step_lexer_fuel=50_000, max_lexer_states=20_000, verbose_errors=False
)
_MESSAGE_CHARACTERS = 200


class CompiledGrammar:
    """A constraint compiled for one tokenizer (core.constraints.Grammar)."""

    def __init__(self, start: llguidance.LLMatcher) -> None:
        self._start = start

    def matcher(self) -> "GrammarMatcher":
        """A matcher at the start of an output; some microseconds."""
        return GrammarMatcher(self._start.deep_copy())


class GrammarMatcher:
    """Follows one output (core.constraints.Matcher); about 20 µs a token."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> bytes:
        """A bit for each id, the lowest first.

        Raises:
            ConstraintBroken: the matcher is past its limits.
        """
        bits: bytes = self._matcher.compute_bitmask()
        self._check()
        return bits

    def accept(self, ids: Sequence[int]) -> None:
        """Take the next tokens of the output.

        Raises:
            ConstraintBroken: one of them was not allowed.
        """
        self._matcher.consume_tokens(list(ids))
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            told = _first_line(self._matcher.get_error())
            raise ConstraintBroken("no output can satisfy it" if told.startswith("NoExtension") else told)


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
            raise _invalid(constraint, f"takes longer than {COMPILE_SECONDS:g} s to compile") from None

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


def build_vocabulary(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """A tokenizer's tokens as llguidance keeps them. Blocking.

    Raises:
        InferdError: CAPABILITY_MISSING.
    """
    ends = sorted(i for i in tokenizer.end_ids if i < tokenizer.vocabulary_size)
    if not ends or not tokenizer.is_byte_exact:
        what = "no end-of-sequence token" if tokenizer.is_byte_exact else "tokens whose bytes are not known"
        text = f"model {tokenizer.name!r} can't constrain its output: its tokenizer has {what}"
        raise capability_missing(tokenizer.name, "constraints", text)
    return llguidance.hf.from_tokenizer(tokenizer.backend, n_vocab=tokenizer.vocabulary_size, eos_token=ends)


def check_size(constraint: Constraint) -> None:
    """Refuse what is empty or too large to be compiled.

    Raises:
        InferdError: INVALID_PARAMETER.
    """
    size = sum(map(len, constraint.options)) if constraint.kind is ConstraintKind.CHOICE else len(constraint.text)
    limit = MAX_CHARACTERS[constraint.kind]
    is_choice = constraint.kind is ConstraintKind.CHOICE
    if size > limit:
        text = f"has {size} characters; at most {limit} are allowed"
        raise _invalid(constraint, text, ".options" if is_choice else "")
    if not is_choice:
        return
    if not 1 <= len(constraint.options) <= MAX_OPTIONS:
        raise _invalid(constraint, f"between 1 and {MAX_OPTIONS} strings are allowed", ".options")
    for i, option in enumerate(constraint.options):
        if not option:
            raise _invalid(constraint, "must not be empty", f".options[{i}]")


def compile_constraint(vocabulary: llguidance.LLTokenizer, constraint: Constraint) -> CompiledGrammar:
    """Compile a constraint of bounded size and find its first tokens. Blocking; on a deep stack.

    Raises:
        InferdError: INVALID_PARAMETER with the place of the error.
    """
    try:
        matcher = llguidance.LLMatcher(vocabulary, _grammar(constraint), log_level=0, limits=_LIMITS)
    except ValueError as failure:
        raise _invalid(constraint, str(failure)) from None
    if matcher.is_error():
        raise _invalid(constraint, _explained(constraint, matcher.get_error()))
    grammar = CompiledGrammar(matcher)
    try:
        first = grammar.matcher().allowed()
    except ConstraintBroken as failure:
        raise _invalid(constraint, f"can't be followed: {failure}") from None
    if not any(first):
        raise _invalid(constraint, "allows no output")
    return grammar


def _grammar(constraint: Constraint) -> str:
    """Grammar as llguidance takes it; ValueError with what is wrong."""
    matcher = llguidance.LLMatcher
    grammar: str
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            grammar = compile_schema(constraint.text)
        case ConstraintKind.REGEX:
            grammar = matcher.grammar_from_regex(constraint.text)
        case ConstraintKind.LARK_GRAMMAR:
            grammar = matcher.grammar_from_lark(constraint.text)
        case ConstraintKind.CHOICE:
            grammar = matcher.grammar_from_regex("|".join(map(_escaped, constraint.options)))
    return grammar


def _escaped(text: str) -> str:
    """A regular expression for exactly this text."""
    return re.sub(r"[^A-Za-z0-9 ]", lambda match: f"\\x{{{ord(match[0]):X}}}", text)


def _explained(constraint: Constraint, error: str) -> str:
    """llguidance's message with its place, in one line."""
    told = re.search(r"\nerror: ([^\n]+)", error)
    if constraint.kind is ConstraintKind.REGEX:
        # The message shows the expression as it was embedded; only where that changed nothing is its place ours.
        shown = re.search(r"\n {4}([^\n]*)\n {4}( *)\^+\nerror: ", error)
        place = f"at character {len(shown[2]) + 1}: " if shown and shown[1] == constraint.text else ""
        return _first_line(place + (told[1] if told else error.partition("(in regex): ")[2] or error))
    place = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"at line \1, column \2: ", error)
    return f"{_first_line(place)} {told[1]}" if told else _first_line(place)


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"


def _invalid(constraint: Constraint, description: str, place: str = "") -> InferdError:
    return invalid_parameter([FieldViolation(f"output.constraint.{constraint.kind}{place}", description)])


def _start_deep(run: Callable[[], Any]) -> None:
    before = threading.stack_size(STACK_NBYTES)
    try:
        threading.Thread(target=run, name="constraint", daemon=True).start()
    finally:
        threading.stack_size(before)
