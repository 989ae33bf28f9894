"""The figures by which a soak judges."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from soak_figures import Drift, Slope


def test_a_line_is_found_through_noise_and_flat_noise_is_flat_within_its_error() -> None:
    dice = random.Random(1)
    growing = [(t, 300 + t * 50 / 3600 + dice.gauss(0, 2)) for t in range(600)]
    slope = Slope.of(growing)
    assert slope.per_hour == pytest.approx(50, abs=4 * slope.error_per_hour)
    assert slope.in_all == pytest.approx(slope.per_hour * 599 / 3600)
    flat = Slope.of([(t, 300 + dice.gauss(0, 2)) for t in range(600)])
    assert abs(flat.per_hour) < 4 * flat.error_per_hour


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)], [(0.0, 1.0), (1.0, 2.0)]])
def test_too_few_points_have_no_slope(points: list[tuple[float, float]]) -> None:
    assert Slope.of(points) == Slope(0.0, 0.0, 0.0)


def test_drift_compares_the_thirds_after_the_warm_up() -> None:
    points = [(float(t), 0.5 if t < 10 else 0.010 if t < 50 else 0.100) for t in range(100)]
    drift = Drift.of(points, 10.0, 100.0)
    assert drift.count == 60
    assert drift.p50 == pytest.approx((10.0, 100.0))
    assert drift.is_slower(1.5, 20.0)
    assert not Drift.of(points, 10.0, 45.0).is_slower(1.5, 20.0)
