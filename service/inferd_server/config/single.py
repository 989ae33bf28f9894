"""A configuration for one model folder, made in memory."""

import re
from pathlib import Path
from typing import Any

from inferd_server.registry.catalog import read_facts, weights_nbytes

from .document import Document
from .entry import GIBIBYTE, folder_problem

SLACK = 1.05
"""Weights may measure a little more than their files state."""

_HUB_HINT = "; a hub's model is fetched first: `hf download ID --local-dir FOLDER`"


def model_name(folder: Path) -> str:
    """The folder's name as a model's name: characters that a name may not have become `-`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", folder.absolute().name)[:128] or "model"


def single_model_problem(folder: Path) -> str:
    """Why no model can be served from here; "" if one can. Blocking (small reads)."""
    problem = folder_problem(folder)
    if problem:
        is_like_a_hub_id = not folder.is_absolute() and len(folder.parts) == 2 and not folder.parent.exists()
        return f"{problem}{_HUB_HINT if is_like_a_hub_id else ''}"
    if not (folder / "config.json").is_file():
        return "this is no model's folder: config.json is missing"
    facts = read_facts(folder)
    return "" if facts.weights_nbytes else f"no weights to serve: {'; '.join(facts.damage) or 'they are empty'}"


def single_model_document(folder: Path, **keys: Any) -> Document:
    """A document that preloads the model in `folder`, with a budget of its own size and 5 % slack.

    Args:
        keys: further keys of the entry; `name` defaults to the folder's name.
    """
    # The least budget that a file may state; a folder without weights is refused for that.
    budget_gb = max(SLACK * weights_nbytes(folder), 2**20) / GIBIBYTE
    entry = {"name": model_name(folder), "path": str(folder), "preload": True, **keys}
    return {"manager": {"memory_budget_gb": budget_gb}, "models": [entry]}
