"""`inferd check` of any file: the plan, or what is wrong with it, a line for each; never a traceback."""

import random
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from inferd_server.__main__ import commands
from inferd_server.config.template import default_file
from support.any_message import mutate

HOSTILE = (
    b"",
    b"\x00",
    b"\xff\xfe" + "models".encode("utf-16-le"),
    b"models: *x",
    b"a: &a [*a, *a]",
    b"a: &a [x]\nb: &b [" + b"*a," * 9 + b"*a]\nmodels: [" + b"*b," * 500 + b"*b]",
    b"[" * 5000,
    b"{a: " * 2000,
    b"!!python/object/apply:os.system ['true']",
    b"? {a: 1}\n: 2",
    b"manager: {memory_budget_gb: " + b"9" * 5000 + b"}",
    b"manager: {memory_budget_gb: .nan}\nmodels: [{name: x, path: .}]",
    b"a: 1\n" * 20_000,
    b"- " * 1000,
    "manager: {memory_budget_gb: 1}\nmodels: [{name: '\u202e\x1b[31m', path: /nowhere}]".encode(),
    b"%YAML 9.9\n---\na: 1",
    b"--- a\n--- b",
    b"models: 2026-99-99",
)


def outcome(file: Path, data: bytes) -> str:
    """What the command prints; its exit code is 0 or 1."""
    file.write_bytes(data)
    result = CliRunner().invoke(commands, ["check", str(file)])
    assert result.exit_code in {0, 1}, (data, result.output)
    assert result.exception is None or isinstance(result.exception, SystemExit), (data, result.exception)
    assert (result.exit_code == 1) == ("error: " in result.stderr), (data, result.output)
    return result.output


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_file_is_refused_in_words(tmp_path: Path, number: int) -> None:
    assert "error: " in outcome(tmp_path / "inferd.yaml", HOSTILE[number])


def test_any_file_is_a_plan_or_a_list_of_problems(tmp_path: Path, tiny_model: Path) -> None:
    good = yaml.safe_dump(
        {
            "server": {"listen": "127.0.0.1:0", "defaults": {"temperature": 0.5}},
            "manager": {"memory_budget_gb": 1, "contention_policy": {"strategy": "wait"}},
            "models": [{"name": "tiny", "path": str(tiny_model), "aliases": ["small"]}],
        }
    ).encode()
    assert "error" not in outcome(tmp_path / "good.yaml", good)

    @given(seed=st.integers(0, 2**32), text=st.sampled_from([good, default_file().encode()]))
    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def each(seed: int, text: bytes) -> None:
        outcome(tmp_path / "inferd.yaml", mutate(text, random.Random(seed)))

    each()
