"""The demo's models for tests: those of this checkout, or prepared once."""

import os
from pathlib import Path

import pytest

from inferd_server import demo

ROOT = Path(__file__).parents[2]
PREPARING_SECONDS = 600


def demo_folder(pytestconfig: pytest.Config) -> Path:
    """$INFERD_DEMO_DIR or this checkout's, if the models are there; else a folder that pytest keeps."""
    folder = Path(os.environ.get("INFERD_DEMO_DIR") or ROOT / ".demo")
    if not demo.is_complete(folder):
        assert pytestconfig.cache is not None
        folder = pytestconfig.cache.mkdir("inferd-demo")
    return folder
