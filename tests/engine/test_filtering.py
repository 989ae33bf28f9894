"""Drawing from the best tokens: looking at a few of them first changes nothing, whatever the logits are like."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferd_server.core.generation import Sampling
from inferd_server.engine import filtering
from inferd_server.engine.filtering import FEW, MANY, Draw
from inferd_server.engine.sampling import Sampler

mx: Any = import_module("mlx.core")  # behind the engine, which brings its BLAS
Logits = NDArray[np.float32]
ROWS = 8
WIDTHS = [8193, 12_345, 49_152]
SETTINGS = [
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(temperature=1.7, top_p=0.999999),
    Sampling(temperature=0.3, top_p=0.5, top_k=40),
    Sampling(temperature=1.0, top_k=3),
    Sampling(temperature=1.0, top_k=FEW + 1),
    Sampling(temperature=1.0, top_k=10**9, min_p=0.05),
    Sampling(temperature=2.0, min_p=1e-5, top_k=9000),
    Sampling(temperature=1.0, top_p=0.95, top_k=600, min_p=0.001),
]


def gaussian(sigma: float) -> Callable[[np.random.Generator, int], Logits]:
    return lambda source, width: (sigma * source.standard_normal((ROWS, width))).astype(np.float32)


def coarse(source: np.random.Generator, width: int) -> Logits:
    """As a model in bfloat16 gives them: many tie."""
    return np.round(2 * gaussian(3.0)(source, width)) / 2


def masked(source: np.random.Generator, width: int) -> Logits:
    """As a constraint leaves them: all but a few, or one, forbidden."""
    logits = np.full((ROWS, width), -np.inf, dtype=np.float32)
    for row, allowed in enumerate((1, 2, 5, 39, 40, 41, FEW, FEW + 5)):
        logits[row, source.choice(width, allowed, replace=False)] = source.standard_normal(allowed)
    return logits


def equal(source: np.random.Generator, width: int) -> Logits:
    return np.zeros((ROWS, width), dtype=np.float32)


def sharp(source: np.random.Generator, width: int) -> Logits:
    logits = gaussian(1.0)(source, width)
    logits[np.arange(ROWS), source.integers(0, width, ROWS)] = 40
    return logits


KINDS = {
    "flat": gaussian(0.3),
    "usual": gaussian(3.0),
    "peaked": gaussian(8.0),
    "coarse": coarse,
    "masked": masked,
    "equal": equal,
    "sharp": sharp,
}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was looked at, and for how many rows."""
    seen: list[tuple[str, int]] = []

    def noting(look: Callable[[Draw], Any]) -> Callable[[Draw], Any]:
        def noted(rows: Draw) -> Any:
            seen.append((look.__name__, rows.logits.shape[0]))
            return look(rows)

        return noted

    monkeypatch.setattr(filtering, "_LOOKS", tuple(noting(look) for look in filtering._LOOKS))
    return seen


def draws(logits: Any, settings: list[Sampling], rounds: int) -> list[list[int]]:
    sampler = Sampler([(setting, 0) for setting in settings])
    return [sampler(logits).tolist() for _ in range(rounds)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_looking_at_a_few_first_draws_what_a_full_sort_draws(
    kind: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = np.random.default_rng(width)
    for turn in range(2):
        logits = mx.array(KINDS[kind](source, width))
        settings = [Sampling(**{**_fields(one), "seed": 97 * turn + number}) for number, one in enumerate(SETTINGS)]
        monkeypatch.setattr(filtering, "SORTS_FAST", False)
        few_first = draws(logits, settings, 3)
        monkeypatch.setattr(filtering, "SORTS_FAST", True)
        assert few_first == draws(logits, settings, 3)


@pytest.mark.parametrize("kind", ["usual", "coarse", "masked", "sharp"])
def test_what_is_drawn_passes_the_filters(kind: str) -> None:
    logits = KINDS[kind](np.random.default_rng(5), 12_345)
    for seed in range(5):
        drawn = Sampler([(Sampling(**{**_fields(one), "seed": seed}), 0) for one in SETTINGS])(mx.array(logits))
        for row, token in enumerate(drawn.tolist()):
            assert logits[row, token] >= lowest_kept(logits[row], SETTINGS[row]) - 1e-3, SETTINGS[row]


def lowest_kept(logits: Logits, sampling: Sampling) -> float:
    """By the book, in float64: the lowest logit that passes all filters."""
    exact = logits.astype(np.float64)
    ordered = np.sort(exact)[::-1]
    masses = np.exp(ordered - ordered[0])
    lowest = [-np.inf]
    if sampling.top_p < 1:
        # A little more than top_p: the sum over 49,000 float32 numbers is not exact.
        reached = np.cumsum(masses) >= (sampling.top_p + 1e-4) * masses.sum()
        lowest.append(ordered[np.argmax(reached)] if reached.any() else -np.inf)
    if 0 < sampling.top_k <= len(ordered):
        lowest.append(ordered[sampling.top_k - 1])
    if sampling.min_p > 0:
        lowest.append(ordered[0] + np.log(sampling.min_p))
    return float(max(lowest))


def test_only_rows_for_which_it_was_not_enough_are_looked_at_again(looks: list[tuple[str, int]]) -> None:
    source = np.random.default_rng(1)
    width = 49_152
    logits = mx.array(
        np.concatenate([sharp(source, width)[:5], gaussian(3.0)(source, width)[:2], equal(source, width)[:1]])
    )
    draws(logits, [Sampling(temperature=1.0, top_p=0.9, seed=n) for n in range(8)], 1)
    assert looks == [("_of_few", 8), ("_of_many", 3), ("_of_all", 1)]


def test_rows_that_a_mask_left_few_tokens_need_one_look(looks: list[tuple[str, int]]) -> None:
    logits = mx.array(masked(np.random.default_rng(1), 49_152)[:7])
    draws(logits, [Sampling(temperature=1.0, top_k=40, top_p=0.99, seed=n) for n in range(7)], 1)
    assert [look for look, _ in looks if look != "_of_few"] == []


def test_a_tie_at_the_threshold_is_kept_wherever_it_lies() -> None:
    width = 3 * MANY
    logits = np.full((1, width), -30, dtype=np.float32)
    tied = np.random.default_rng(3).choice(width, MANY + 7, replace=False)
    logits[0, tied] = 0
    drawn = [row[0] for row in draws(mx.array(logits), [Sampling(temperature=1.0, top_k=1000, seed=1)], 150)]
    assert set(drawn) <= set(tied.tolist())
    assert len(set(drawn)) > 135  # out of 8,199 that are all alike


def test_a_row_without_numbers_leaves_its_neighbours_alone() -> None:
    logits = gaussian(3.0)(np.random.default_rng(2), 20_000)
    settings = [Sampling(temperature=1.0, top_p=0.9, seed=n) for n in range(ROWS)]
    sound = draws(mx.array(logits), settings, 1)[0]
    logits[3] = np.nan
    broken = draws(mx.array(logits), settings, 1)[0]
    assert [token for n, token in enumerate(broken) if n != 3] == [token for n, token in enumerate(sound) if n != 3]
    assert 0 <= broken[3] < 20_000


def test_settings_of_other_rows_do_not_change_a_draw() -> None:
    logits = mx.array(gaussian(3.0)(np.random.default_rng(4), 12_345))
    settings = [Sampling(**{**_fields(one), "seed": number}) for number, one in enumerate(SETTINGS)]
    together = draws(logits, settings, 1)[0]
    alone = [draws(logits[n : n + 1], settings[n : n + 1], 1)[0][0] for n in range(ROWS)]
    assert together == alone


def _fields(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
