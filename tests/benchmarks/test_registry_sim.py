"""The simulation of the registry tells the same story every time, and docs/registry.md tells it too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tables(*arguments: str, hash_seed: str = "0") -> str:
    """What `make sim` prints, without the lines that tell of CPU time."""
    command = [sys.executable, "-m", "registry_sim", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run(
        command, cwd=ROOT / "benchmarks", env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    return "\n".join(line for line in run.stdout.splitlines() if line.startswith("|"))


def test_two_simulations_of_the_same_traffic_are_equal_and_answer_everybody() -> None:
    first = tables("strategies", "--seconds", "40", hash_seed="1")
    assert len(first.splitlines()) == 2 + 5
    assert tables("strategies", "--seconds", "40", hash_seed="2") == first


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_shows_the_strategies_as_they_are_simulated_now() -> None:
    """If this fails after a change of the planner: `make sim ARGS="strategies --publish"`, and look at what changed."""
    assert tables("strategies") in (ROOT / "docs" / "registry.md").read_text()
