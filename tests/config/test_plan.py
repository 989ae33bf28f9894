"""The memory plan says what preloads, what cannot be together and what will not load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd_server.config import Config
from inferd_server.config.plan import plan_lines

Models = Callable[..., list[str]]


@pytest.fixture
def plan(valid: Callable[..., Config], tiny_model: Path) -> Models:
    """The plan of models of these sizes under a budget of 1 GiB."""

    def plan(sizes: dict[str, float], keys: dict[str, dict[str, Any]] | None = None) -> list[str]:
        models = [
            {"name": name, "path": str(tiny_model), "estimated_memory_gb": size, **(keys or {}).get(name, {})}
            for name, size in sizes.items()
        ]
        return list(plan_lines(valid(models=models), 0))

    return plan


def test_models_that_fit_together_are_said_to(plan: Models) -> None:
    lines = plan({"a": 0.25, "b": 0.5}, {"a": {"preload": True, "aliases": ["x"]}})
    assert "a      0.25 GiB  stated  preload   x" in lines
    assert "preloads: a: 0.25 GiB of 1.00 GiB" in lines
    assert "all models fit together: 0.75 GiB of 1.00 GiB" in lines
    assert not any("never together" in line or "warn" in line for line in lines)


def test_pairs_that_never_fit_are_named(plan: Models) -> None:
    lines = plan({"a": 0.25, "b": 0.75, "c": 0.5})
    assert "preloads: none; each model loads at its first request" in lines
    assert "all models together need 1.50 GiB, 0.50 GiB more than the budget" in lines
    assert [line for line in lines if line.startswith("never")] == ["never together: b + c (1.25 GiB)"]


def test_the_list_of_pairs_is_bounded(plan: Models) -> None:
    lines = [line for line in plan({f"m{i}": 0.6 for i in range(10)}) if line.startswith("never")]
    assert len(lines) == 17
    assert lines[-1] == "never together: 29 more pairs"


def test_what_pinned_models_shut_out_is_warned_about(plan: Models) -> None:
    lines = plan({"a": 0.75, "b": 0.5, "c": 0.25}, {"a": {"pinned": True}})
    assert "warning: no room for b while the pinned models are resident" in lines


def test_a_model_that_will_not_load_is_warned_about(plan: Models, valid: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    config = valid(models=[{"name": "a", "path": "empty", "estimated_memory_gb": 0.1}])
    lines = list(plan_lines(config, 0))
    assert "warning: a will not load as it is: config.json is missing" in lines
