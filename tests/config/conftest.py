"""Configuration files made from plain data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferd_server.config import Config, ConfigError, load_config

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration of these sections; a budget of 1 GiB if `manager` is not given."""

    def write(**sections: Any) -> Path:
        file = tmp_path / "inferd.yaml"
        file.write_text(yaml.safe_dump({"manager": {"memory_budget_gb": 1}, **sections}))
        return file

    return write


@pytest.fixture
def problems_of(write: Write, tiny_model: Path) -> Callable[..., dict[str, str]]:
    """The problems of a configuration, message by path; {} if it is valid. `models` defaults to one good model."""

    def problems_of(*, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, **sections: Any):
        sections.setdefault("models", [{"name": "tiny", "path": str(tiny_model)}])
        try:
            load_config(write(**sections), flags or {}, environ or {})
        except ConfigError as error:
            paths = [problem.path for problem in error.problems]
            assert len(paths) == len(set(paths)), f"a path is named twice: {paths}"
            return {problem.path: problem.message for problem in error.problems}
        return {}

    return problems_of


@pytest.fixture
def valid(write: Write, tiny_model: Path) -> Callable[..., Config]:
    """A configuration that must be valid; `models` defaults to one good model."""

    def valid(*, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, **sections: Any) -> Config:
        sections.setdefault("models", [{"name": "tiny", "path": str(tiny_model)}])
        return load_config(write(**sections), flags or {}, environ or {})

    return valid
