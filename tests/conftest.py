"""Fixtures that every room may use."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from inferd_server.engine.blas import prefer_openblas
from support.programs import MISSING, TESTED_WITH

# Nothing in a test may reach a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

# Before any test imports mlx: references are then computed with the BLAS that the server uses.
prefer_openblas()

# A shell that runs the tests in the background ignores Ctrl-C for them, and so would every child they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# CI draws the same examples every time; people draw new ones. Neither fails because shared cores were slow.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_report_header() -> list[str]:
    """Tests that are left out here."""
    return [f"{program} is missing: tests/deploy/{TESTED_WITH[program]} is left out" for program in MISSING]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama (2 layers, 64 dims, float32)."""
    from support import tiny_llama

    return tiny_llama.build(tmp_path_factory.mktemp("models") / "tiny")
