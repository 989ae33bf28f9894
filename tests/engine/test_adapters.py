"""LoRA adapters: the answers of mlx_lm with the same adapter, and what is wrong with broken ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import LoadAbandoned
from inferd_server.engine import device
from inferd_server.engine.checks import check_model_folder
from inferd_server.engine.language import open_language_engine
from inferd_server.registry.catalog import read_facts
from support import tiny_adapter, tiny_llama
from support.engine_room import LoadingFake, Reference, ids, open_engine, request, run, settings

PROMPTS = ([5, 9, 100, 31], [77, 8], list(range(20, 90)))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return tiny_adapter.build(tmp_path_factory.mktemp("adapters") / "lora", tiny_model)


@pytest.fixture
def copy(tmp_path: Path, adapter: Path) -> Path:
    return Path(shutil.copytree(adapter, tmp_path / "copy"))


def reference(folder: Path, adapter: Path | None) -> list[list[int]]:
    model = Reference(folder, adapter)
    return [model.greedy(prompt) for prompt in PROMPTS]


def answers(folder: Path, adapter: Path | None, **changes: Any) -> list[list[int]]:
    engine = open_engine(folder, adapter_path=adapter, **changes)
    batched = [ids(tokens) for tokens in run(engine, *map(request, PROMPTS))]
    engine.close()
    return batched


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
def test_tokens_are_those_of_mlx_lm_with_the_same_adapter(tmp_path: Path, tiny_model: Path, kind: str) -> None:
    adapter = tiny_adapter.build(tmp_path / kind, tiny_model, kind=kind)
    expected = reference(tiny_model, adapter)
    assert answers(tiny_model, adapter) == expected
    assert expected != answers(tiny_model, None)


def test_an_adapter_lies_over_quantized_weights(tmp_path: Path) -> None:
    base = tiny_llama.build(tmp_path / "base", quantization_bits=4)
    adapter = tiny_adapter.build(tmp_path / "adapter", base)
    assert answers(base, adapter) == reference(base, adapter)


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
def test_its_bytes_count_as_weights_and_in_the_estimate(tmp_path: Path, tiny_model: Path, kind: str) -> None:
    adapter = tiny_adapter.build(tmp_path / kind, tiny_model, kind=kind)
    loading = LoadingFake()
    engine = open_language_engine(settings(tiny_model, adapter_path=adapter), loading)
    nbytes = engine.weights_nbytes
    engine.close()
    assert nbytes == read_facts(tiny_model, adapter).weights_nbytes == loading.reports[-1][0] == loading.reports[-1][1]
    assert (nbytes > read_facts(tiny_model).weights_nbytes) == (kind != "full")


def test_a_load_with_an_adapter_can_be_abandoned(tiny_model: Path, adapter: Path) -> None:
    device.release_unused()
    before = device.active_nbytes()
    with pytest.raises(LoadAbandoned):
        open_language_engine(settings(tiny_model, adapter_path=adapter), LoadingFake(abandon_after=2))
    assert device.active_nbytes() == before


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def config(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def parameters(**changes: Any) -> Callable[[Path], object]:
    good = {"rank": 4, "scale": 2.0, "dropout": 0.5, "keys": ["self_attn.q_proj", "mlp.up_proj"]}
    merged = {key: value for key, value in {**good, **changes}.items() if value is not ...}
    return config(lora_parameters=merged)


def in_peft_form(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")


def without_a_tensor(folder: Path) -> None:
    import mlx.core as mx

    arrays = dict(mx.load(str(folder / WEIGHTS)))
    del arrays["model.layers.1.mlp.up_proj.lora_b"]
    mx.save_safetensors(str(folder / WEIGHTS), arrays)


CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
CORRUPT, UNSUPPORTED, FAILED = Reason.MODEL_CORRUPT, Reason.MODEL_UNSUPPORTED, Reason.MODEL_LOAD_FAILED
CUT = b"\x08" + bytes(7) + b"{}"

# What is wrong, the reason, the file to blame, and whether the cheap check already sees it.
BROKEN: list[tuple[str, Callable[[Path], object], Reason, str, bool]] = [
    ("no folder", shutil.rmtree, FAILED, "", True),
    ("no config", lambda folder: (folder / CONFIG).unlink(), CORRUPT, CONFIG, True),
    ("config is no JSON", write(CONFIG, b"{"), CORRUPT, CONFIG, True),
    ("config is a list", write(CONFIG, b"[]"), CORRUPT, CONFIG, True),
    ("unknown kind", config(fine_tune_type="other"), CORRUPT, CONFIG, True),
    ("kind is a list", config(fine_tune_type=[]), CORRUPT, CONFIG, True),
    ("no number of layers", config(num_layers=None), CORRUPT, CONFIG, True),
    ("no parameters", config(lora_parameters=[]), CORRUPT, CONFIG, True),
    ("no scale", parameters(scale=...), CORRUPT, CONFIG, True),
    ("rank 0", parameters(rank=0), CORRUPT, CONFIG, True),
    ("keys are no list", parameters(keys="q_proj"), CORRUPT, CONFIG, True),
    ("no weights", lambda folder: (folder / WEIGHTS).unlink(), CORRUPT, WEIGHTS, True),
    ("weights are cut", write(WEIGHTS, CUT), CORRUPT, WEIGHTS, True),
    ("weights are empty", write(WEIGHTS, b"\x02" + bytes(7) + b"{}"), CORRUPT, WEIGHTS, True),
    ("PEFT's form", in_peft_form, UNSUPPORTED, "", True),
    ("another rank", parameters(rank=8), CORRUPT, WEIGHTS, False),
    ("a monstrous rank", parameters(rank=10**12), CORRUPT, WEIGHTS, False),
    ("other layers", parameters(keys=["self_attn.k_proj"]), CORRUPT, WEIGHTS, False),
    ("no layer", parameters(keys=["nothing"]), CORRUPT, WEIGHTS, False),
    ("dropout of everything", parameters(dropout=1), CORRUPT, WEIGHTS, False),
    ("a tensor is missing", without_a_tensor, CORRUPT, WEIGHTS, False),
]


@pytest.mark.parametrize(("harm", "reason", "file", "is_cheap"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_a_broken_adapter_fails_with_its_reason_and_leaves_nothing_in_memory(
    copy: Path, tiny_model: Path, harm: Callable[[Path], object], reason: Reason, file: str, is_cheap: bool
) -> None:
    device.release_unused()
    before = device.active_nbytes()
    harm(copy)
    adapted = settings(tiny_model, adapter_path=copy)
    with pytest.raises(InferdError) as failed:
        open_language_engine(adapted, LoadingFake())
    assert failed.value.reason == reason, failed.value.message
    assert failed.value.facts.get("file", "") == file
    assert "adapter" in failed.value.message
    assert str(copy) not in failed.value.message
    assert failed.value.__context__ is None or is_cheap
    assert device.active_nbytes() == before
    if is_cheap:
        with pytest.raises(InferdError) as found:
            check_model_folder(adapted)
        assert (found.value.reason, found.value.message) == (reason, failed.value.message)
    else:
        check_model_folder(adapted)


def test_the_cheap_check_takes_a_good_adapter(tiny_model: Path, adapter: Path) -> None:
    check_model_folder(settings(tiny_model, adapter_path=adapter))
