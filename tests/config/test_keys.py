"""The keys file: all of its problems at once, no text of it repeated, and `inferd keys`."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from inferd_server.__main__ import commands
from inferd_server.config import Config, ConfigError, read_keys, reload_config
from inferd_server.config.keys import hash_of, new_key
from inferd_server.core.access import Limits, MethodGroup
from inferd_server.core.model import Strategy

HASH = "sha256:" + "0123456789abcdef" * 4
ALL = frozenset(Strategy)


@pytest.fixture
def keys_file(tmp_path: Path) -> Callable[[object], Path]:
    """Writes a keys file of this content, or of these keys."""

    def write(content: object) -> Path:
        path = tmp_path / "keys.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump({"keys": content}))
        return path

    return write


def problems(path: Path, strategies: frozenset[Strategy] = ALL) -> dict[str, str]:
    try:
        read_keys(path, strategies)
    except ConfigError as error:
        return {problem.path: problem.message for problem in error.problems}
    return {}


def test_a_key_says_what_it_may_do(keys_file: Callable[[object], Path]) -> None:
    text = f"""
keys:
- id: a
  hash: {HASH}
  models: [x, "team-*"]
  methods: [admin]
  strategies: [fail]
  max_priority: -5
  requests_per_minute: 60
  tokens_per_minute: 1000
  max_concurrent: 2
  max_prompt_tokens: 10
  max_output_tokens: 20
  expires: 2027-01-31T00:00:00Z
  disabled: true
- {{id: b, hash: "{HASH[:-1]}0"}}
"""
    a, b = read_keys(keys_file(text), ALL)
    assert (a.id, a.digest.hex(), a.disabled, a.expires) == ("a", HASH.removeprefix("sha256:"), True, 1_801_353_600.0)
    assert a.access.models == ("x", "team-*")
    assert a.access.methods == {MethodGroup.ADMIN}
    assert a.access.strategies == {Strategy.FAIL}
    assert a.access.max_priority == -5
    assert a.access.limits == Limits(10, 20, 2, 60, 1000)
    assert (b.access.models, b.access.strategies, b.access.limits) == (("*",), None, Limits())
    assert b.access.methods == {MethodGroup.GENERATE, MethodGroup.OBSERVE}
    assert (b.disabled, b.expires) == (False, None)


def test_all_problems_are_told_at_once_and_no_text_is_repeated(keys_file: Callable[[object], Path]) -> None:
    secret = "a plain secret"
    entries = [
        dict.fromkeys(("id", "hash", "expires", "disabled", "max_priority", "max_concurrent", "typo"), secret),
        {"id": "b", "hash": HASH, "models": [secret, 3], "methods": [secret], "strategies": ["preempt", secret]},
        {"id": "b", "hash": HASH, "strategies": ["preempt"], "max_priority": 101, "expires": 5},
        secret,
        {},
    ]
    found = problems(keys_file(entries), ALL - {Strategy.PREEMPT})
    assert found.keys() == {
        *(f"keys[0].{name}" for name in entries[0]),
        *("keys[1].models[0]", "keys[1].models[1]", "keys[1].methods[0]", "keys[1].strategies[1]"),
        *("keys[2].id", "keys[2].hash", "keys[2].max_priority", "keys[2].expires"),
        *("keys[3]", "keys[4].id", "keys[4].hash"),
    }
    assert secret not in str(found)
    assert HASH not in str(found)
    assert "never the key itself" in found["keys[0].hash"]
    assert found["keys[2].hash"] == "is that of keys[1] already"


def test_a_strategy_has_to_be_among_those_that_the_server_allows(keys_file: Callable[[object], Path]) -> None:
    path = keys_file([{"id": "a", "hash": HASH, "strategies": ["wait", "preempt"]}])
    assert problems(path) == {}
    assert problems(path, frozenset({Strategy.WAIT})).keys() == {"keys[0].strategies[1]"}


@pytest.mark.parametrize(
    "content", ["", "[]", "keys: 3", "keys: null", "other: 1", "- x", "keys: [", "\0", "keys: &a [*a]"]
)
def test_what_is_no_keys_file_is_refused(keys_file: Callable[[object], Path], content: str) -> None:
    assert problems(keys_file(content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path / "nothing") == {"": "cannot be read: No such file or directory"}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5), st.text())
def test_any_content_is_refused_by_problems_alone(value: object, text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.yaml"
        for entry in (value, {text: value}, {"id": value, "hash": value, "models": value, "limits": value}):
            path.write_text(yaml.safe_dump({"keys": [entry]}))
            assert problems(path)


# --- in a configuration -----------------------------------------------------------------------------------------


def test_its_problems_are_the_configuration_s(problems_of: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: [{id: 1}]")
    found = problems_of(auth={"keys_file": "keys.yaml"}, server={"max_queue": 0})
    assert found.keys() == {"auth.keys_file: keys[0].id", "auth.keys_file: keys[0].hash", "server.max_queue"}
    assert problems_of(auth={"keys_file": "nothing.yaml"}) == {
        "auth.keys_file": "cannot be read: No such file or directory"
    }


def test_it_lies_beside_the_file_that_names_it(
    valid: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.yaml").write_text("keys: []")
    assert valid(auth={"keys_file": "keys.yaml"}).keys == ()
    assert valid().keys is None
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.yaml").write_text("keys: []")
    monkeypatch.chdir(here)
    assert valid(flags={"auth.keys_file": "mine.yaml"}).keys_path == here / "mine.yaml"
    assert valid(environ={"INFERD_AUTH_KEYS_FILE": "mine.yaml"}).keys == ()


def test_keys_open_an_address_to_others_with_a_warning(
    valid: Callable[..., Config], problems_of: Any, tmp_path: Path
) -> None:
    (tmp_path / "keys.yaml").write_text("keys: []")
    everywhere = {"listen": "0.0.0.0:50051"}
    assert "neither TLS nor keys" in problems_of(server=everywhere)["server.listen"]
    [warning] = valid(server=everywhere, auth={"keys_file": "keys.yaml"}).warnings
    assert "in clear" in warning
    assert valid(auth={"keys_file": "keys.yaml"}).warnings == ()
    assert valid(server={"listen": f"unix:{tmp_path}/s"}, auth={"keys_file": "keys.yaml"}).warnings == ()


def test_limits_are_the_server_s_and_change_with_a_reload(valid: Callable[..., Config], tmp_path: Path) -> None:
    config = valid(limits={"max_concurrent": 3}, flags={"limits.requests_per_minute": "60"})
    assert config.caller_limits == Limits(max_concurrent=3, requests_per_minute=60)
    path = tmp_path / "inferd.yaml"
    path.write_text(path.read_text().replace("max_concurrent: 3", "max_concurrent: 4"))
    assert reload_config(config, {}).caller_limits == Limits(max_concurrent=4, requests_per_minute=60)


# --- inferd keys ------------------------------------------------------------------------------------------------


def run(*words: object, **options: Any) -> Any:
    return CliRunner().invoke(commands, [str(word) for word in words], **options)


def test_create_prints_the_key_once_and_an_entry_that_opens_for_it(keys_file: Callable[[object], Path]) -> None:
    made = run("keys", "create", "team-a", "--model", "x-*", "--model", "y", "--method", "admin")
    assert made.exit_code == 0
    key = made.stdout.strip()
    assert key.startswith("inferd_")
    assert key not in made.stderr
    [read] = read_keys(keys_file("keys:\n" + made.stderr), ALL)
    assert (read.id, read.access.models, read.access.methods) == ("team-a", ("x-*", "y"), {MethodGroup.ADMIN})
    assert hash_of(key) == f"sha256:{read.digest.hex()}"
    assert run("keys", "create", "team-a").stdout != made.stdout


@pytest.mark.parametrize("words", [("a b",), ("a", "--model", 'x"y'), ("a", "--method", "root")])
def test_create_refuses_what_would_be_no_entry(words: tuple[str, ...]) -> None:
    refused = run("keys", "create", *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: ")


def test_hash_reads_a_key_from_stdin_and_refuses_what_can_be_guessed() -> None:
    key = new_key()
    assert run("keys", "hash", input=key + "\n").stdout.strip() == hash_of(key)
    for bad in ("hunter2", "x" * 31, "x" * 20 + " " + "x" * 20, "ü" * 40):
        refused = run("keys", "hash", input=bad)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert bad not in refused.stderr


def test_list_tells_what_each_key_may_do(keys_file: Callable[[object], Path]) -> None:
    path = keys_file(
        f"""keys:
- {{id: a, hash: "{HASH}", models: ["x-*"], requests_per_minute: 60}}
- {{id: b, hash: "{HASH[:-1]}0", disabled: true, methods: []}}
- {{id: c, hash: "{HASH[:-1]}1", expires: 2020-01-01T00:00:00Z}}
- {{id: d, hash: "{HASH[:-1]}2", expires: 2999-01-01T00:00:00Z}}
"""
    )
    rows = [line.split("  ") for line in run("keys", "list", path).stdout.splitlines()]
    told = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert told[1] == ["a", "valid", "generate observe", "x-*", "requests_per_minute=60"]
    assert told[2] == ["b", "disabled", "-", "*", "-"]
    assert told[3][:2] == ["c", "expired 2020-01-01T00:00:00Z"]
    assert told[4][:2] == ["d", "valid until 2999-01-01T00:00:00Z"]
    path.write_text("keys: [{id: 1}]")
    refused = run("keys", "list", path)
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 2)
