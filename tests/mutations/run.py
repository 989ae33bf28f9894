"""Plants each bug of the table in a copy of the server and says which test of tests/registry catches it.

    make mutants [ARGS="WORD ..."]

With words, only bugs whose name or file holds one of them. Fails if one survives.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutations.bug import ROOT, Bug
from mutations.table import BUGS

TESTS = (
    "test_parts.py",
    "test_machine.py",
    "test_corners.py",
    "test_detached.py",
    "test_in_the_way.py",
    "test_preempting_drains.py",
    "test_sizes.py",
    "test_fairness.py",
    "test_machine_rules.py",
)
COMMAND = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=120")


class Verdict(NamedTuple):
    """What became of a planted bug: `test` is the first that failed, empty if it survived."""

    bug: Bug
    test: str

    def __str__(self) -> str:
        return f"{self.bug.file:14} {self.bug.name:50} {self.test or 'SURVIVED'}"


def judge(bug: Bug) -> Verdict:
    """Run the tests of the pure rooms, the fast ones first, against a copy of the server with the bug in it."""
    with tempfile.TemporaryDirectory() as folder:
        # CI: the same random histories every time. Nobody looks at the smallest one that fails, so none is sought.
        environment = {
            **os.environ,
            "PYTHONPATH": str(bug.plant(Path(folder))),
            "CI": "1",
            "INFERD_TESTS_SHRINK": "no",
        }
        tests = [str(ROOT / "tests" / "registry" / name) for name in TESTS]
        run = subprocess.run([*COMMAND, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return Verdict(bug, "")
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py\S*)", run.stdout, re.MULTILINE)
    assert failed, f"{bug.name}: the tests did not run\n{run.stdout}{run.stderr}"
    return Verdict(bug, failed[1])


def judge_all(bugs: Iterable[Bug]) -> Iterator[Verdict]:
    """Verdicts in the order of the bugs, two at a time."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        yield from pool.map(judge, bugs)


def main(words: list[str]) -> int:
    """Print the verdicts; how many bugs survived."""
    chosen = [bug for bug in BUGS if not words or any(word in f"{bug.file} {bug.name}" for word in words)]
    survivors = 0
    for verdict in judge_all(chosen):
        print(verdict, flush=True)
        survivors += not verdict.test
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return min(survivors, 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
