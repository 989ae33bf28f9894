"""Scores and their order."""

import math

import pytest

from inferd_server.core.reranking import Scored
from inferd_server.serving.rerankings import ranked, sigmoid


@pytest.mark.parametrize("logit", [-1e38, -800.0, -1.5, -0.0, 0.0, 2.5, 30.0, 800.0, 1e38])
def test_a_sigmoid_is_one_for_any_number(logit: float) -> None:
    assert math.isclose(sigmoid(logit) + sigmoid(-logit), 1, abs_tol=1e-15)
    assert math.isclose(sigmoid(logit), (1 + math.tanh(logit / 2)) / 2, abs_tol=1e-15)


def test_the_best_come_first_and_equal_ones_by_their_index() -> None:
    found = ranked([0.5, -1.0, 2.0, 0.5, 0.0, -0.0])
    assert [each.index for each in found] == [2, 0, 3, 4, 5, 1]
    assert found[0] == Scored(2, 2.0)
    assert ranked([]) == ()
