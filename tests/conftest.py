"""Fixtures that every room may use."""

import os
from pathlib import Path

import pytest

# Nothing in a test may reach a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama (2 layers, 64 dims, float32)."""
    from support import tiny_llama

    return tiny_llama.build(tmp_path_factory.mktemp("models") / "tiny")
