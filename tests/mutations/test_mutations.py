"""The tests of the registry's pure rooms catch every bug of the table."""

import ast

import pytest
from mutations.bug import Bug
from mutations.run import judge_all
from mutations.table import BUGS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_row_of_the_table_still_applies_to_one_place(bug: Bug) -> None:
    ast.parse(bug.apply())


def test_every_pure_file_has_bugs_and_each_bug_a_name_of_its_own() -> None:
    pure = {
        "state.py", "ledger.py", "policy.py", "planner.py", "placement.py", "room.py", "residency.py", "tickets.py",
        "unloading.py", "machine.py", "loads.py", "deadlines.py", "alarms.py",
    }  # fmt: skip
    assert {bug.file for bug in BUGS} == pure
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_planted_bug_is_caught() -> None:
    survivors = [str(verdict) for verdict in judge_all(BUGS) if not verdict.test]
    assert survivors == []
