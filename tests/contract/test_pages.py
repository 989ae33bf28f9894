"""What the pages for people name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inferd_client.outcome import MEANINGS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_every_command_and_word_of_the_pages_exists() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    commands = set(re.findall(r"(?:\.venv/bin/|`)inferd ([a-z][a-z-]*)", text))
    assert {"chat", "models", "serve", "check"} <= commands
    code = "import sys; from inferd_client.cli import main; sys.argv = ['inferd', '--help']; main()"
    helped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {command for command in commands if not re.search(rf"\b{command}\b", helped)} == set()
    words = set(re.findall(r"(?:^\s*|`|\$ )make ([a-z-]+)", text, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"setup", "serve", "check", "bench"} <= words <= targets


def test_the_readme_lists_the_exit_codes() -> None:
    listed = dict(re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert listed == {str(code): meaning for code, meaning in MEANINGS.items()}
