"""Choices, regular expressions and Lark grammars; matchers; the bounds of a compilation."""

import asyncio
import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from inferd_server.core.constraints import Constraint, ConstraintBroken, ConstraintKind, Matcher
from inferd_server.core.errors import InferdError, Reason
from inferd_server.text import constraints
from inferd_server.text.constraints import Constraints
from inferd_server.text.grammars import CompiledGrammar, build_vocabulary, check_size, compile_constraint
from inferd_server.text.tokenizer import Tokenizer
from support.constrained_walks import allowed_ids, text_of, walk

Words = tuple[Tokenizer, LLTokenizer]
FAMILIES = ["byte-level", "sentencepiece"]


@pytest.fixture(scope="module")
def vocabularies(folders: Any) -> dict[str, Words]:
    tokenizers = {family: Tokenizer.load(folders[family]) for family in FAMILIES}
    return {family: (tokenizer, build_vocabulary(tokenizer)) for family, tokenizer in tokenizers.items()}


@pytest.fixture(params=FAMILIES)
def words(request: pytest.FixtureRequest, vocabularies: dict[str, Words]) -> Words:
    return vocabularies[request.param]


def choice(*options: str) -> Constraint:
    return Constraint(ConstraintKind.CHOICE, options=options)


def regex(text: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, text)


def lark(text: str) -> Constraint:
    return Constraint(ConstraintKind.LARK_GRAMMAR, text)


def follow(words: Words, matcher: Matcher, text: str) -> list[int]:
    """Accept a text, the longest allowed token at each place; returns its ids."""
    rest, ids = text.encode(), []
    while rest:
        spelled = {token_id: words[1].decode_bytes([token_id]) for token_id in allowed_ids(matcher)}
        fitting = [token_id for token_id, piece in spelled.items() if piece and rest.startswith(piece)]
        token_id = max(fitting, key=lambda i: len(spelled[i]))
        matcher.accept([token_id])
        ids.append(token_id)
        rest = rest.removeprefix(spelled[token_id])
    return ids


def ids_of(words: Words, text: str) -> list[int]:
    return follow(words, compile_constraint(words[1], choice(text)).matcher(), text)


def check_and_compile(words: Words, constraint: Constraint) -> CompiledGrammar:
    check_size(constraint)
    return compile_constraint(words[1], constraint)


def refusal(words: Words, constraint: Constraint) -> tuple[str, str]:
    with pytest.raises(InferdError) as caught:
        check_and_compile(words, constraint)
    assert caught.value.reason is Reason.INVALID_PARAMETER
    (violation,) = caught.value.violations
    return violation.field, violation.description


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(options=st.lists(TEXTS, min_size=1, max_size=6), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_an_output_under_a_choice_is_one_of_the_strings(
    options: list[str], seed: int, vocabularies: dict[str, Words]
) -> None:
    for words in vocabularies.values():
        grammar = compile_constraint(words[1], choice(*options))
        ids, is_complete = walk(grammar.matcher(), words[0], seed)
        assert is_complete
        assert text_of(words[0], ids) in options


@given(options=st.lists(TEXTS, min_size=1, max_size=6))
@settings(max_examples=40)
def test_every_string_of_a_choice_can_come_out(options: list[str], vocabularies: dict[str, Words]) -> None:
    for words in vocabularies.values():
        grammar = compile_constraint(words[1], choice(*options))
        for option in options:
            matcher = grammar.matcher()
            follow(words, matcher, option)
            assert words[0].end_ids <= set(allowed_ids(matcher))


def test_a_choice_of_a_thousand_strings(words: Words) -> None:
    options = [f"option {i}: {'x' * 100}" for i in range(1000)]
    grammar = compile_constraint(words[1], choice(*options))
    ids, _ = walk(grammar.matcher(), words[0], 0)
    assert text_of(words[0], ids) in options


# Each is the same in Rust's syntax and in Python's.
PATTERNS = [
    "abc",
    "^abc$",
    "[a-c]{2,4}",
    "(?:yes|no|maybe)",
    "a*b+c?",
    r"\$[0-9]{1,3}\.[0-9]{2}",
    "(?i:hello)",
    r"[^\n\x00-\x1f]{1,5}",
    r"a/b\\c\"d'e",
    ".{0,4}",
    "(ab|cd)*ef",
    "[äöü世🙂]{1,3}",
    "[a-z]{3} [0-9A-Z]{1,3}",
    "a\nb",
    "",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_output_under_a_regex_matches_it_from_end_to_end(pattern: str, words: Words) -> None:
    grammar = compile_constraint(words[1], regex(pattern))
    for seed in range(8):
        ids, is_complete = walk(grammar.matcher(), words[0], seed)
        text = text_of(words[0], ids)
        assert not is_complete or re.fullmatch(pattern, text), repr(text)


LITERAL = st.text("ab01-/ .", min_size=1, max_size=3).map(re.escape)
CLASS = st.sampled_from(["[a-d]", "[^ab]", "[0-9]", ".", r"[\]\\-]"])


def _composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["", "?", "{1,3}", "{0,2}", "{2}"])
    return (
        st.builds(lambda part, count: f"(?:{part}){count}", inner, counts)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.lists(inner, min_size=2, max_size=3).map("".join)
    )


@given(pattern=st.recursive(LITERAL | CLASS, _composed, max_leaves=6), seed=st.integers(0, 2**32))
@settings(max_examples=50)
def test_any_regex_holds_for_what_comes_out(pattern: str, seed: int, vocabularies: dict[str, Words]) -> None:
    for words in vocabularies.values():
        grammar = compile_constraint(words[1], regex(pattern))
        ids, is_complete = walk(grammar.matcher(), words[0], seed)
        assert is_complete
        assert re.fullmatch(pattern, text_of(words[0], ids))


def test_digits_are_unicode_s_as_in_rust(words: Words) -> None:
    follow(words, compile_constraint(words[1], regex(r"\d")).matcher(), "٣")


def test_a_lark_grammar_is_followed(words: Words) -> None:
    grammar = compile_constraint(words[1], lark('start: sum\nsum: NUM ("+" NUM){1,3}\nNUM: /[1-9][0-9]?/'))
    for seed in range(8):
        ids, is_complete = walk(grammar.matcher(), words[0], seed)
        assert not is_complete or re.fullmatch(r"[1-9]\d?(\+[1-9]\d?){1,3}", text_of(words[0], ids))


REFUSALS = {
    "regex: unclosed class": (regex("ab(["), "regex", "at character 4: unclosed character class"),
    "regex: look-ahead": (regex("a(?=b)"), "regex", "at character 2: look-around"),
    "regex: word boundary": (regex(r"a\b"), "regex", "lookarounds not supported"),
    "regex: backreference": (regex(r"(a)\1"), "regex", "at character 4: backreferences are not supported"),
    "regex: place in an escaped source": (regex("a/b("), "regex", "unclosed group"),
    "regex: too long": (regex("a" * 8193), "regex", "has 8193 characters; at most 8192 are allowed"),
    "lark: unknown name": (lark('start: "a" b'), "lark_grammar", 'at line 1, column 8: unknown name: "b"'),
    "lark: second line": (lark('start: a\na: "b'), "lark_grammar", "at line 2, column"),
    "lark: no start": (lark('foo: "a"'), "lark_grammar", "no start rule found"),
    "lark: regex inside": (lark("start: /a(/"), "lark_grammar", "unclosed group"),
    "lark: endless": (lark("start: start"), "lark_grammar", "no output can satisfy it"),
    "lark: nested too deep": (lark("start: " + "(" * 9999 + '"a"' + ")" * 9999), "lark_grammar", "too deeply nested"),
    "lark: too many intersections": (
        lark("start: T\nT: " + " & ".join(f"/(.*{c}.*){{9}}/" for c in "abcdefghij")),
        "lark_grammar",
        "has 9 of the operators & and ~; at most 8 are allowed",
    ),
    "choice: none": (choice(), "choice.options", "between 1 and 1024 strings are allowed"),
    "choice: too many": (choice(*"a" * 1025), "choice.options", "between 1 and 1024 strings are allowed"),
    "choice: empty string": (choice("a", ""), "choice.options[1]", "must not be empty"),
    "choice: too long": (choice("a" * 200_000, "b" * 100_000), "choice.options", "at most 262144 are allowed"),
    "schema: no JSON": (Constraint(ConstraintKind.JSON_SCHEMA, '{"a":'), "json_schema", "at character 5"),
    "schema: no object": (Constraint(ConstraintKind.JSON_SCHEMA, "[]"), "json_schema", "must be a JSON object"),
    "schema: nested too deep": (
        Constraint(ConstraintKind.JSON_SCHEMA, '{"items":' * 9000 + "{}" + "}" * 9000),
        "json_schema",
        "nested too deeply",
    ),
    "schema: deeper than llguidance reads": (
        Constraint(ConstraintKind.JSON_SCHEMA, '{"items":' * 200 + "{}" + "}" * 200),
        "json_schema",
        "recursion limit exceeded",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_bad_constraint_is_refused_with_its_place(name: str, words: Words) -> None:
    constraint, field, told = REFUSALS[name]
    found_field, description = refusal(words, constraint)
    assert found_field == f"output.constraint.{field}"
    assert told in description
    assert len(description) < 400
    assert "\n" not in description


def test_end_ids_are_allowed_only_where_the_output_may_end(words: Words) -> None:
    ends = words[0].end_ids
    matcher = compile_constraint(words[1], regex("ab?")).matcher()
    assert ends.isdisjoint(allowed_ids(matcher))
    matcher.accept(ids_of(words, "a"))
    assert ends < set(allowed_ids(matcher))
    matcher.accept(ids_of(words, "b"))
    assert ends == set(allowed_ids(matcher))


def test_every_end_id_of_the_model_ends_a_constrained_output(make_folder: Any) -> None:
    tokenizer = Tokenizer.load(make_folder(config={"eos_token_id": [1, 2, 99_999]}))
    grammar = compile_constraint(build_vocabulary(tokenizer), choice("a"))
    matcher = grammar.matcher()
    matcher.accept(tokenizer.encode("a"))
    assert allowed_ids(matcher) == sorted(i for i in tokenizer.end_ids if i < tokenizer.vocabulary_size)


def test_no_id_beyond_the_tokenizer_is_allowed(words: Words) -> None:
    matcher = compile_constraint(words[1], regex("(?s:.*)")).matcher()
    assert max(allowed_ids(matcher)) < words[0].vocabulary_size


def test_control_tokens_are_no_text(words: Words) -> None:
    ids = set(allowed_ids(compile_constraint(words[1], regex("(?s:.+)")).matcher()))
    assert ids.isdisjoint(words[0].backend.all_special_ids)


def test_a_forbidden_token_breaks_the_constraint_for_good(words: Words) -> None:
    matcher = compile_constraint(words[1], choice("ab")).matcher()
    with pytest.raises(ConstraintBroken, match="doesn't satisfy the grammar"):
        matcher.accept(ids_of(words, "x"))
    with pytest.raises(ConstraintBroken):
        matcher.allowed()
    with pytest.raises(ConstraintBroken):
        matcher.accept(ids_of(words, "a"))


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_an_id_that_is_no_token_breaks_the_constraint(token_id: int, words: Words) -> None:
    matcher = compile_constraint(words[1], regex("(?s:.*)")).matcher()
    with pytest.raises((ConstraintBroken, OverflowError)):
        matcher.accept([token_id])


def test_ids_replayed_at_once_leave_a_matcher_where_they_left_it_one_by_one(words: Words) -> None:
    schema = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
    grammar = compile_constraint(words[1], Constraint(ConstraintKind.JSON_SCHEMA, schema))
    ids = ids_of(words, '{"name":"Jürgen 世')
    one_by_one, at_once = grammar.matcher(), grammar.matcher()
    for token_id in ids:
        one_by_one.accept([token_id])
    at_once.accept(ids)
    assert one_by_one.allowed() == at_once.allowed()


def test_matchers_of_one_grammar_are_independent(words: Words) -> None:
    grammar = compile_constraint(words[1], choice("ab", "cd"))
    first, second = grammar.matcher(), grammar.matcher()
    before = second.allowed()
    first.accept(ids_of(words, "a"))
    assert second.allowed() == before != first.allowed()


def test_tokens_have_the_bytes_that_the_detokenizer_gives_them(words: Words) -> None:
    tokenizer, vocabulary = words
    special = set(tokenizer.backend.all_special_ids)
    for token_id in set(range(tokenizer.vocabulary_size)) - special:
        told = vocabulary.decode_bytes([token_id])
        is_byte_ff = not told  # no part of UTF-8; llguidance marks control tokens with it
        assert is_byte_ff or told.decode(errors="replace") == text_of(tokenizer, [token_id]), token_id


def test_a_chain_of_references_does_not_overflow_the_stack(tmp_path: Path, vocabularies: dict[str, Words]) -> None:
    """In a process of its own: an overflow would end this one."""
    script = tmp_path / "chains.py"
    script.write_text(
        "import asyncio, json, sys\n"
        "from pathlib import Path\n"
        "from inferd_server.core.constraints import Constraint, ConstraintKind\n"
        "from inferd_server.core.errors import InferdError\n"
        "from inferd_server.text.constraints import Constraints\n"
        "from inferd_server.text.tokenizer import Tokenizer\n"
        "def rules(sep, name, last, count=2500):\n"
        "    names = [name + format(i, 'x') for i in range(count)]\n"
        "    return '\\n'.join(f'{a}{sep}{b}' for a, b in zip(names, names[1:])) + f'\\n{names[-1]}{sep}{last}'\n"
        "def schema(make, count=3000):\n"
        "    parts = {format(i, 'x'): make({'$ref': f'#/$defs/{i + 1:x}'}) for i in range(count)}\n"
        "    parts[format(count, 'x')] = {'type': 'null'}\n"
        "    return json.dumps({'$ref': '#/$defs/0', '$defs': parts}, separators=(',', ':'))\n"
        "CHAINS = [\n"
        "    (ConstraintKind.LARK_GRAMMAR, 'start: a0\\n' + rules(':', 'a', '\"x\"')),\n"
        "    (ConstraintKind.LARK_GRAMMAR, 'start: A0\\n' + rules(':', 'A', '\"x\"')),\n"
        "    (ConstraintKind.JSON_SCHEMA, schema(lambda ref: ref)),\n"
        "    (ConstraintKind.JSON_SCHEMA, schema(lambda ref: {'items': ref, 'type': 'array'})),\n"
        "    (ConstraintKind.JSON_SCHEMA, schema(lambda ref: {'anyOf': [ref, {'type': 'null'}]})),\n"
        "    (ConstraintKind.JSON_SCHEMA, schema(lambda ref: {'allOf': [ref]})),\n"
        "]\n"
        "async def main():\n"
        "    tokenizer, constraints = Tokenizer.load(Path(sys.argv[1])), Constraints()\n"
        "    for kind, text in CHAINS:\n"
        "        try:\n"
        "            grammar = await constraints.compile(tokenizer, Constraint(kind, text))\n"
        "            print('compiled', grammar.matcher().allowed().count(0) > 0)\n"
        "        except InferdError as error:\n"
        "            print('refused', error)\n"
        "asyncio.run(main())\n"
    )
    folder = str(vocabularies["byte-level"][0].backend.name_or_path)
    ended = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 6, ended.stdout


def test_a_process_ends_well_while_a_compilation_runs(tmp_path: Path, vocabularies: dict[str, Words]) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from inferd_server.core.constraints import Constraint, ConstraintKind\n"
        "from inferd_server.text import constraints\n"
        "from inferd_server.text.tokenizer import Tokenizer\n"
        "constraints.COMPILE_SECONDS = 0.05\n"
        "async def main():\n"
        "    tokenizer, slow = Tokenizer.load(Path(sys.argv[1])), Constraint(ConstraintKind.REGEX, 'a?' * 3000)\n"
        "    await asyncio.gather(constraints.Constraints().compile(tokenizer, slow), return_exceptions=True)\n"
        "asyncio.run(main())\n"
        "constraints.END_SECONDS = 30\n"
    )
    folder = str(vocabularies["byte-level"][0].backend.name_or_path)
    ended = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0), ended.stderr


async def test_a_tokenizer_without_byte_tokens_cannot_be_constrained(folders: Any) -> None:
    tokenizer = Tokenizer.load(folders["wordpiece"])
    with pytest.raises(InferdError) as caught:
        await Constraints().compile(tokenizer, choice("a"))
    assert caught.value.reason is Reason.CAPABILITY_MISSING
    assert caught.value.facts["capability"] == "constraints"


async def test_a_vocabulary_is_built_once_for_each_tokenizer(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(constraints, "build_vocabulary", lambda tokenizer: built.append(tokenizer) or words[1])
    compiler = Constraints()
    await asyncio.gather(*(compiler.compile(words[0], choice("a", "b")) for _ in range(5)))
    assert built == [words[0]]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Constraint]:
    """Every constraint that is compiled, in order."""
    done: list[Constraint] = []
    real = constraints.compile_constraint

    def noting(vocabulary: LLTokenizer, constraint: Constraint) -> CompiledGrammar:
        done.append(constraint)
        return real(vocabulary, constraint)

    monkeypatch.setattr(constraints, "compile_constraint", noting)
    return done


async def test_requests_with_one_constraint_share_a_compilation_and_go_on_together(
    words: Words, compilations: list[Constraint]
) -> None:
    compiler = Constraints()
    await compiler.compile(words[0], choice("warm"))
    tasks = [asyncio.create_task(compiler.compile(words[0], choice("a", "b"))) for _ in range(9)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    assert all(task.done() for task in tasks)
    assert await compiler.compile(words[0], choice("a", "b")) is tasks[0].result()
    assert compilations == [choice("warm"), choice("a", "b")]


async def test_a_request_that_leaves_does_not_take_the_compilation_along(
    words: Words, compilations: list[Constraint]
) -> None:
    compiler = Constraints()
    await compiler.compile(words[0], choice("warm"))
    first, second = (asyncio.create_task(compiler.compile(words[0], choice("a"))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert allowed_ids((await second).matcher())
    assert first.cancelled()
    assert compilations.count(choice("a")) == 1


async def test_what_does_not_compile_is_not_kept(words: Words, compilations: list[Constraint]) -> None:
    compiler = Constraints()
    for _ in range(2):
        with pytest.raises(InferdError):
            await compiler.compile(words[0], regex("("))
    assert compilations == [regex("(")] * 2


async def test_few_constraints_are_kept_and_no_large_ones(
    words: Words, compilations: list[Constraint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "MAX_KEPT", 2)
    monkeypatch.setattr(constraints, "KEPT_CHARACTERS", 5)
    compiler = Constraints()
    for text in ("a", "b", "a", "c", "a", "b", "larger", "larger"):
        await compiler.compile(words[0], choice(text))
    assert [each.options[0] for each in compilations] == ["a", "b", "c", "b", "larger", "larger"]


async def test_compiled_constraints_go_with_their_tokenizer(words: Words) -> None:
    compiler = Constraints()
    tokenizer = Tokenizer.load(Path(words[0].backend.name_or_path))
    grammar = await compiler.compile(tokenizer, choice("a"))
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None
    assert allowed_ids(grammar.matcher())


async def test_a_compilation_that_takes_too_long_is_refused_and_keeps_its_place(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(constraints, "COMPILE_SECONDS", 0.2)
    real = constraints.compile_constraint

    def slow(vocabulary: LLTokenizer, constraint: Constraint) -> CompiledGrammar:
        if constraint.options[0] == "slow":
            release.wait(30)
        return real(vocabulary, constraint)

    monkeypatch.setattr(constraints, "compile_constraint", slow)
    compiler = Constraints()
    try:
        count = constraints.CONCURRENT_COMPILATIONS
        slow_ones = [compiler.compile(words[0], choice("slow", str(number))) for number in range(count)]
        for error in await asyncio.gather(*slow_ones, return_exceptions=True):
            assert isinstance(error, InferdError)
            assert "takes longer than" in str(error)
        with pytest.raises(InferdError, match="takes longer than"):
            await compiler.compile(words[0], choice("fast"))
    finally:
        release.set()
    await compiler.compile(words[0], choice("fast"))


async def test_a_compilation_does_not_hold_up_the_loop(words: Words) -> None:
    schema = {"type": "integer", "multipleOf": 9999}
    task = asyncio.create_task(
        Constraints().compile(words[0], Constraint(ConstraintKind.JSON_SCHEMA, str(schema).replace("'", '"')))
    )
    longest = 0.0
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0.001)
        longest = max(longest, time.monotonic() - before)
    await task
    assert longest < 0.5
