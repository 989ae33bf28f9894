"""The checks of CI themselves: that they fail when they should and pass in every kind of clone."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = ["setup", "serve", "test", "test-long", "check", "lint", "types", "generate", "bench", "soak", "clean"]
IDENTITY = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def run(*command: str | Path, cwd: Path, **environment: str) -> tuple[int, str]:
    """Exit code and everything said."""
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env={**os.environ, **IDENTITY, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of one commit only, as CI services make it, with this environment's tools."""
    folder = tmp_path / "clone"
    code, said = run("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder), cwd=tmp_path)
    assert code == 0, said
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def change_contract(clone: Path, old: str, new: str) -> None:
    """Commit a change of model_service.proto."""
    proto = clone / "protos/inferd/v1/model_service.proto"
    text = proto.read_text()
    assert old in text
    proto.write_text(text.replace(old, new))
    code, said = run("git", "commit", "--quiet", "--all", "--message", "contract: a change", cwd=clone)
    assert code == 0, said


def test_make_alone_lists_the_words() -> None:
    code, said = run("make", cwd=ROOT)
    assert code == 0
    for word in WORDS:
        assert f"make {word} " in said


def test_a_clone_of_one_commit_has_nothing_to_compare_the_contract_with(clone: Path) -> None:
    code, said = run(".ci/breaking", cwd=clone)
    assert code == 0
    assert "left out" in said


def test_a_field_that_changes_its_number_breaks_the_contract(clone: Path) -> None:
    change_contract(clone, "string architecture = 4;", "string architecture = 40;")
    code, said = run(".ci/breaking", cwd=clone)
    assert code != 0
    assert "architecture" in said


def test_a_new_field_does_not_break_the_contract(clone: Path) -> None:
    change_contract(clone, "string architecture = 4;", "string architecture = 4;\n  string x = 99;")
    code, said = run(".ci/breaking", cwd=clone)
    assert code == 0
    assert "compatible" in said


def test_without_a_usable_python_the_set_up_says_what_to_do() -> None:
    code, said = run("/bin/sh", ".ci/python", cwd=ROOT, PATH="/nonexistent", PYTHON="")
    assert code == 1
    assert "Python 3.11 or newer" in said


def test_a_named_python_is_taken_or_refused_by_name() -> None:
    assert run(".ci/python", cwd=ROOT, PYTHON=str(ROOT / ".venv/bin/python"))[0] == 0
    code, said = run(".ci/python", cwd=ROOT, PYTHON="no-such-python")
    assert code == 1
    assert "no-such-python" in said
