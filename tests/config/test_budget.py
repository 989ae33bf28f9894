"""Budget against ceiling, as a Mac and a machine without a working set would report it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inferd_server.config import Config, MemoryFigures, budget_report, memory_figures
from inferd_server.config.budget import RESERVE_NBYTES, largest_resident_set, report, work_limit_nbytes
from support import tiny_embedder

GIB = 2**30
MAC = MemoryFigures(
    budget_nbytes=60 * GIB,
    working_set_nbytes=96 * GIB,
    lowest_share=0.75,
    lowest_share_model="fast",
    cache_nbytes=2 * GIB,
    cache_entries=3,
)


def test_without_a_conflict_nothing_warns() -> None:
    found = report(MAC)
    assert found.warnings == ()
    assert "warn" not in "\n".join(found.lines).lower()
    assert found.lines == (
        "budget: 60.00 GiB of weights, all resident models together",
        "allocation ceiling: 72.00 GiB = 0.75 (gpu_memory_utilization of fast, the lowest) x 96.00 GiB recommended "
        "working set",
        "prefix-cache limit: 2.00 GiB per model, binding for 3 entries",
    )


def test_a_budget_above_the_ceiling_warns_and_one_at_it_does_not() -> None:
    assert report(replace(MAC, budget_nbytes=72 * GIB)).warnings == ()
    [warning] = report(replace(MAC, budget_nbytes=72 * GIB + 1)).warnings
    assert "is above the allocation ceiling (72.00 GiB)" in warning


def test_a_prefix_cache_limit_at_or_above_the_ceiling_warns_by_itself() -> None:
    assert report(replace(MAC, cache_nbytes=72 * GIB - 1)).warnings == ()
    [warning] = report(replace(MAC, cache_nbytes=72 * GIB)).warnings
    assert "prefix-cache limit (72.00 GiB) alone reaches" in warning
    assert len(report(replace(MAC, cache_nbytes=80 * GIB, budget_nbytes=80 * GIB)).warnings) == 2


def test_a_cache_that_binds_for_no_entry_does_not_warn() -> None:
    found = report(replace(MAC, cache_nbytes=0, cache_entries=0))
    assert found.warnings == ()
    assert report(replace(MAC, cache_nbytes=80 * GIB, cache_entries=0)).warnings == ()
    assert found.lines[2] == "prefix cache: none, because cache_memory_mb is 0"


def test_the_limit_of_prefix_caches_binds_for_no_embedder(
    valid: Callable[..., Config], tiny_model: Path, tmp_path: Path
) -> None:
    vectors = {"name": "b", "path": str(tiny_embedder.build(tmp_path / "vectors"))}
    both = valid(models=[{"name": "a", "path": str(tiny_model)}, vectors])
    assert memory_figures(both, 0).cache_entries == 1
    assert (
        budget_report(valid(models=[vectors]), 0).lines[2]
        == "prefix cache: none, because embedders and rerankers keep nothing"
    )


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (
            replace(MAC, working_set_nbytes=0),
            "allocation ceiling: none, because the device reports no recommended working set",
        ),
        (replace(MAC, lowest_share=None), "allocation ceiling: none, because no entry batches"),
    ],
)
def test_where_nothing_installs_a_ceiling_it_is_said_plainly(figures: MemoryFigures, line: str) -> None:
    found = report(replace(figures, budget_nbytes=10**15, cache_nbytes=10**15))
    assert (figures.ceiling_nbytes, found.lines[1], found.warnings) == (0, line, ())
    assert "warn" not in "\n".join(found.lines).lower()


def test_the_ceiling_comes_from_the_lowest_share_of_the_batching_entries(
    valid: Callable[..., Config], tiny_model: Path
) -> None:
    path = str(tiny_model)
    config = valid(
        server={"defaults": {"gpu_memory_utilization": 0.9}},
        models=[
            {"name": "a", "path": path},
            {"name": "b", "path": path, "gpu_memory_utilization": 0.5},
            {"name": "c", "path": path, "gpu_memory_utilization": 0.1, "continuous_batching": False},
        ],
    )
    figures = memory_figures(config, 10 * GIB)
    assert (figures.lowest_share, figures.lowest_share_model, figures.ceiling_nbytes) == (0.5, "b", 5 * GIB)
    assert figures.cache_entries == 3


def test_the_report_is_logged_line_by_line(valid: Callable[..., Config], caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("inferd.test")
    with caplog.at_level(logging.INFO, log.name):
        budget_report(valid(), 0).log(log)
        budget_report(valid(), GIB).log(log)
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 6 + [logging.WARNING] * 2


def test_memory_for_requests_is_what_the_weights_that_fit_together_leave(
    valid: Callable[..., Config], tiny_model: Path
) -> None:
    path = str(tiny_model)
    models = [{"name": name, "path": path, "estimated_memory_gb": size} for name, size in (("a", 4), ("b", 3))]
    both = valid(manager={"memory_budget_gb": 8}, models=models)
    assert work_limit_nbytes(both, 100 * GIB, 1) == 80 * GIB - 7 * GIB - RESERVE_NBYTES
    one = valid(manager={"memory_budget_gb": 6}, models=models)
    left = work_limit_nbytes(one, 0, 10 * GIB)
    assert 0 <= 8 * GIB - 4 * GIB - RESERVE_NBYTES - left < GIB // 1000  # never both: the larger counts
    assert work_limit_nbytes(one, GIB, 10 * GIB) == 0
    models[1]["gpu_memory_utilization"] = 0.5
    assert work_limit_nbytes(valid(manager={"memory_budget_gb": 8}, models=models), 100 * GIB, 1) < 43 * GIB


def test_the_largest_set_of_models_that_fits_is_found_among_many() -> None:
    assert largest_resident_set([], 10) == 0
    assert largest_resident_set([3, 3, 3], 9) == 9
    assert largest_resident_set([5, 4, 3], 8) == 8
    assert largest_resident_set([9, 4], 8) == 6  # 4, and no more than a unit (here a byte) too many for each model
    sizes = [(7 + n * n) * GIB // 10 for n in range(2000)]
    assert 99 * GIB < largest_resident_set(sizes, 100 * GIB) <= 100 * GIB
