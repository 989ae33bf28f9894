"""The tests of the pure rooms catch every bug of a table."""

import pytest
from registry.planted_bugs import BUGS, Bug, is_caught


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert is_caught(bug)


def test_the_table_names_each_bug_once() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
