"""Which folders are those of vision models, and what their entries say."""

import json
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.model import Capability, EngineKind, EngineSettings, ModelEntry, SamplingDefaults
from inferd_server.registry.catalog import describe

TEMPLATE = "{% if c.type == 'image' %}<image>{% endif %}"
EYES = {"model_type": "qwen2_vl", "vision_config": {"patch_size": 14}, "vocab_size": 300}


def described(
    folder: Path, config: dict[str, Any], *, template: str = TEMPLATE, processor: str = "", **engine: Any
) -> ModelEntry:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    if processor:
        (folder / processor).write_text("{}")
    return describe(ModelEntry("m", EngineSettings("m", folder, **engine)), {}, SamplingDefaults())


@pytest.mark.parametrize("processor", ["preprocessor_config.json", "processor_config.json"])
def test_eyes_a_processor_and_a_template_that_shows_images_make_a_vision_model(tmp_path: Path, processor: str) -> None:
    entry = described(tmp_path, EYES, processor=processor)
    assert entry.engine.kind is EngineKind.VISION
    assert entry.capabilities == {Capability.GENERATE, Capability.CHAT, Capability.VISION}


@pytest.mark.parametrize(
    ("config", "template", "processor"),
    [
        ({"model_type": "qwen2", "vocab_size": 300}, TEMPLATE, "preprocessor_config.json"),
        (EYES, TEMPLATE, ""),
        (EYES, "{{ messages }}", "preprocessor_config.json"),
        ({**EYES, "vision_config": None}, TEMPLATE, "preprocessor_config.json"),
        ({**EYES, "model_type": "olmoe_only_in_mlx_lm"}, "", "preprocessor_config.json"),
    ],
)
def test_without_any_of_them_it_is_a_language_model(
    tmp_path: Path, config: dict[str, Any], template: str, processor: str
) -> None:
    entry = described(tmp_path, config, template=template, processor=processor)
    assert entry.engine.kind is EngineKind.LANGUAGE
    assert Capability.VISION not in entry.capabilities


def test_one_may_be_forced(tmp_path: Path) -> None:
    entry = described(tmp_path, EYES, template="{{ messages }}", kind=EngineKind.VISION)
    assert entry.engine.kind is EngineKind.VISION
    assert Capability.VISION in entry.capabilities


def test_a_family_that_only_mlx_lm_knows_is_left_to_it(tmp_path: Path) -> None:
    entry = described(tmp_path, {**EYES, "model_type": "nanbeige"}, processor="preprocessor_config.json")
    assert entry.engine.kind is EngineKind.LANGUAGE


@pytest.mark.parametrize(("shape", "size"), [([321, 8], 321), ([], 0), (["x"], 0), ([True, 1], 0)])
def test_the_vocabulary_may_be_told_by_the_embeddings_alone(tmp_path: Path, shape: list[Any], size: int) -> None:
    header = json.dumps({"language_model.model.embed_tokens.weight": {"dtype": "F32", "shape": shape}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert described(tmp_path, {**EYES, "vocab_size": None}).vocabulary_size == size
