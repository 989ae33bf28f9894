"""Vision families with different eyes, positions and processors; and the trial that none passes by its name alone."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import EngineKind
from support import tiny_llama, tiny_vlm, vision_families
from support.engine_room import MLX_SCALARS_NBYTES, LoadingFake, ids, request, run, settings
from support.tiny_vlm import VisionReference, noise

CHATS: tuple[Sequence[Any], ...] = ((noise(1), "what?"), ("a ", noise(2), " b ", noise(3, 60, 200)), ("words alone",))
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm.build(tmp_path_factory.mktemp("models") / "eyes")


def open_eyes(folder: Path, **changes: Any) -> Any:
    from inferd_server.engine.vision import open_vision_engine

    return open_vision_engine(settings(folder, kind=EngineKind.VISION, **changes), LoadingFake())


def refusal(folder: Path, **changes: Any) -> InferdError:
    import mlx.core as mx

    before = mx.get_active_memory()
    with pytest.raises(InferdError) as caught:
        open_eyes(folder, **changes)
    assert mx.get_active_memory() <= before + MLX_SCALARS_NBYTES
    return caught.value


@pytest.mark.parametrize("family", vision_families.FAMILIES)
def test_a_mixed_batch_gives_mlx_vlms_tokens(tmp_path: Path, family: str) -> None:
    folder = vision_families.build(tmp_path / family, family)
    reference = VisionReference(folder)
    # mlx_vlm's own preparation of prompts fails for LLaVA with this transformers; ours does not.
    prepared = reference.greedy_as_prepared if family == "llava" else reference.greedy
    expected = [prepared(chat, tokens=TOKENS) for chat in CHATS[:2]] + [reference.greedy(CHATS[2], tokens=TOKENS)]
    engine = open_eyes(folder, prefill_step_size=7)
    asked = [
        request(prompt, TOKENS, pictures=pictures) for prompt, pictures in (reference.prompt(chat) for chat in CHATS)
    ]
    assert engine.max_rows > 1
    assert [ids(answer) for answer in run(engine, *asked)] == expected
    assert looking_steps(folder, reference.prompt(CHATS[1])) > vision_families.DEPTH
    assert len({tuple(tokens) for tokens in expected}) == len(CHATS)
    engine.close()


def looking_steps(folder: Path, prompt: tuple[list[int], Any]) -> int:
    """In how many pieces a model looks at the pictures of a prompt."""
    from inferd_server.engine.sight import SightedModel

    return len(SightedModel(VisionReference(folder).model).see(*prompt).steps)


def test_a_model_that_sees_otherwise_is_refused(folder: Path) -> None:
    from inferd_server.engine.sight import Seen, SightedModel
    from inferd_server.engine.vision import Trial

    class Blindfolded(SightedModel):
        def see(self, *prompt: Any) -> Seen:
            seen = super().see(*prompt)
            return replace(seen, inputs={**seen.inputs, "inputs_embeds": 0 * seen.inputs["inputs_embeds"]})

    with pytest.raises(InferdError, match="not read as mlx_vlm reads them") as caught:
        Trial(settings(folder), Blindfolded(VisionReference(folder).model)).run()
    assert caught.value.reason is Reason.MODEL_UNSUPPORTED


def test_a_model_that_is_only_right_alone_decodes_alone(folder: Path) -> None:
    from inferd_server.engine.sight import SightedModel
    from inferd_server.engine.vision import Trial

    class Distracted(SightedModel):
        def decode_inputs(self, rows: Any) -> dict[str, Any]:
            told = super().decode_inputs(rows)
            return told if len(rows) == 1 else {name: value + 900 for name, value in told.items()}

    model = VisionReference(folder).model
    assert Trial(settings(folder), SightedModel(model)).run()
    assert not Trial(settings(folder), Distracted(model)).run()


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("config.json", '"qwen2_vl"', '"no_such_eyes"', "mlx_vlm has no vision model 'no_such_eyes'"),
        ("config.json", '"torch_dtype"', '"model_file": "x.py", "torch_dtype"', "trust_remote_code is not set"),
        ("preprocessor_config.json", '"patch_size"', '"auto_map": {}, "patch_size"', "trust_remote_code is not set"),
        ("preprocessor_config.json", '"patch_size": 14', '"patch_size": "x"', "image processor"),
        ("tokenizer_config.json", "<|image_pad|>", "", "does not put placeholders"),
        ("tokenizer_config.json", "c['type'] == 'image'", "false", "its chat template does not show pictures"),
    ],
)
def test_a_folder_that_can_not_be_served_is_refused_with_the_reason(
    tmp_path: Path, file: str, old: str, new: str, told: str
) -> None:
    folder = tiny_vlm.build(tmp_path / "eyes")
    (folder / "x.py").write_text("raise SystemExit('the code of the folder was run')")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    error = refusal(folder)
    assert error.reason is Reason.MODEL_UNSUPPORTED
    assert told in error.message


@pytest.mark.parametrize("option", ["adapter_path", "draft_path", "kv_bits"])
def test_what_a_vision_model_can_not_have_is_refused_by_name(tmp_path: Path, folder: Path, option: str) -> None:
    error = refusal(folder, **{option: 8 if option == "kv_bits" else tmp_path})
    assert option.removesuffix("_path") in error.message


def test_a_text_model_forced_to_see_is_refused(tmp_path: Path) -> None:
    assert "no image processor" in refusal(tiny_llama.build(tmp_path / "blind")).message


def test_nothing_is_left_in_memory_after_the_close(folder: Path) -> None:
    import mlx.core as mx

    open_eyes(folder).close()
    reference = VisionReference(folder)
    prompt, pictures = reference.prompt(CHATS[0])
    del reference
    before = mx.get_active_memory()
    engine = open_eyes(folder)
    engine.insert(request(prompt, 100, pictures=pictures))
    for _ in range(5):
        engine.step()
    engine.close()
    assert mx.get_active_memory() <= before + MLX_SCALARS_NBYTES


def test_only_who_opens_a_vision_model_imports_mlx_vlm_and_the_process_stays_as_it_was() -> None:
    code = """
import resource, sys
import inferd_server.app, inferd_server.engine.language
assert "mlx_vlm" not in sys.modules
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
import inferd_server.engine.vision
assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
