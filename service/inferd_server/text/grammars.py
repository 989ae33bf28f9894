"""Constraints compiled for a model's tokens with llguidance, and followed token by token.

A compiler of other people's grammars is given bounds: here on the source and on what its automata may grow to.
"""

import re
from collections.abc import Sequence

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
MAX_INTERSECTIONS = 8
"""Most `&` and `~` of a Lark grammar, quoted ones counted too: the automaton of twenty took more than 45 s."""

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


def size(constraint: Constraint) -> int:
    """Characters of its source; a choice's are all of its options together."""
    return sum(map(len, constraint.options)) if constraint.kind is ConstraintKind.CHOICE else len(constraint.text)


def check_size(constraint: Constraint) -> None:
    """Refuse what is empty or too large to be compiled.

    Raises:
        InferdError: INVALID_PARAMETER.
    """
    characters = size(constraint)
    limit = MAX_CHARACTERS[constraint.kind]
    is_choice = constraint.kind is ConstraintKind.CHOICE
    if characters > limit:
        text = f"has {characters} characters; at most {limit} are allowed"
        raise invalid(constraint, text, ".options" if is_choice else "")
    if constraint.kind is ConstraintKind.LARK_GRAMMAR:
        _check_intersections(constraint)
    if not is_choice:
        return
    if not 1 <= len(constraint.options) <= MAX_OPTIONS:
        raise invalid(constraint, f"between 1 and {MAX_OPTIONS} strings are allowed", ".options")
    for i, option in enumerate(constraint.options):
        if not option:
            raise invalid(constraint, "must not be empty", f".options[{i}]")


def _check_intersections(constraint: Constraint) -> None:
    count = constraint.text.count("&") + constraint.text.count("~")
    if count > MAX_INTERSECTIONS:
        raise invalid(constraint, f"has {count} of the operators & and ~; at most {MAX_INTERSECTIONS} are allowed")


def compile_constraint(vocabulary: llguidance.LLTokenizer, constraint: Constraint) -> CompiledGrammar:
    """Compile a constraint of bounded size and find its first tokens. Blocking; on a deep stack.

    Raises:
        InferdError: INVALID_PARAMETER with the place of the error.
    """
    try:
        matcher = llguidance.LLMatcher(vocabulary, _grammar(constraint), log_level=0, limits=_LIMITS)
    except ValueError as failure:
        raise invalid(constraint, str(failure)) from None
    if matcher.is_error():
        raise invalid(constraint, _explained(constraint, matcher.get_error()))
    grammar = CompiledGrammar(matcher)
    try:
        first = grammar.matcher().allowed()
    except ConstraintBroken as failure:
        raise invalid(constraint, f"can't be followed: {failure}") from None
    if not any(first):
        raise invalid(constraint, "allows no output")
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


def invalid(constraint: Constraint, description: str, place: str = "") -> InferdError:
    """INVALID_PARAMETER for a constraint; `place` is the rest of the field's path."""
    return invalid_parameter([FieldViolation(f"output.constraint.{constraint.kind}{place}", description)])
