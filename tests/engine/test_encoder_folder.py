"""What an embedder's folder says, and what is refused by name because it would give wrong vectors."""

import json
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import Capability, EngineKind, EngineSettings, ModelEntry, SamplingDefaults
from inferd_server.engine.checks import check_model_folder
from inferd_server.engine.encoder_folder import UNSTATED_MAX_TOKENS, is_embedder, read_encoder_folder
from inferd_server.registry.catalog import describe
from support import tiny_embedder, tiny_llama
from support.tiny_embedder import MAX_TOKENS, WIDTH


def change(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = json.loads(file.read_text()) if file.exists() else {}
    content = {key: value for key, value in {**content, **values}.items() if value is not None}
    file.write_text(json.dumps(content))


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def settings(folder: Path, **changes: Any) -> EngineSettings:
    return EngineSettings("m", folder, EngineKind.EMBEDDING, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_embedder.build(tmp_path / "m", prompts={"query": "q: "})


def test_the_entry_of_an_embedder_says_what_it_can(folder: Path) -> None:
    entry = describe(ModelEntry("m", EngineSettings("m", folder, prefix_cache_nbytes=9)), {}, SamplingDefaults())
    assert entry.capabilities == {Capability.EMBED}
    assert (entry.engine.kind, entry.engine.prefix_cache_nbytes) == (EngineKind.EMBEDDING, 0)
    assert entry.context_length == MAX_TOKENS
    assert entry.embedder is not None
    assert (entry.embedder.width, entry.embedder.max_tokens) == (WIDTH, MAX_TOKENS)
    assert (entry.embedder.normalizes, entry.embedder.prompts) == (True, {"query": "q: "})
    check_model_folder(entry.engine)


def test_weights_of_dense_layers_are_counted_and_checked(tmp_path: Path) -> None:
    folder = tiny_embedder.build(tmp_path / "m", "gemma3_text")
    entry = describe(ModelEntry("m", EngineSettings("m", folder)), {}, SamplingDefaults())
    files = [*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]
    assert len(files) == 3
    assert 0.8 * sum(file.stat().st_size for file in files) < entry.estimated_bytes
    check_model_folder(entry.engine)
    files[-1].write_bytes(files[-1].read_bytes()[:-5])
    with pytest.raises(InferdError) as caught:
        check_model_folder(entry.engine)
    assert (caught.value.reason, caught.value.facts["file"]) == (Reason.MODEL_CORRUPT, "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "files", "wanted"),
    [
        ("bert", ("modules.json", "1_Pooling"), True),
        ("bert", (), True),
        ("qwen3", ("modules.json",), True),
        ("qwen3", ("1_Pooling",), True),
        ("qwen3", (), False),
        ("llama", ("modules.json",), False),
    ],
)
def test_a_decoder_embeds_only_with_the_files_that_say_how(
    tmp_path: Path, kind: str, files: tuple[str, ...], wanted: bool
) -> None:
    for name in files:
        (tmp_path / name).mkdir() if name == "1_Pooling" else (tmp_path / name).write_text("[]")
    assert is_embedder(tmp_path, {"model_type": kind}) == wanted


def test_other_heads_are_no_embedders(tmp_path: Path) -> None:
    assert not is_embedder(tmp_path, {"model_type": "bert", "architectures": ["BertForSequenceClassification"]})
    assert is_embedder(tmp_path, {"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    assert not is_embedder(tmp_path, {"model_type": ["bert"]})


@pytest.mark.parametrize(
    ("kind", "stated", "positions", "tokenizer", "wanted"),
    [
        ("bert", 32, 512, 512, 32),
        ("bert", 1000, 512, 10**30, 512),
        ("bert", None, 512, 128, 128),
        ("bert", None, None, None, UNSTATED_MAX_TOKENS),
        ("bert", -3, True, "x", UNSTATED_MAX_TOKENS),
        ("xlm-roberta", None, 514, None, 512),
    ],
)
def test_a_text_may_be_as_long_as_every_file_allows(
    tmp_path: Path, kind: str, stated: Any, positions: Any, tokenizer: Any, wanted: int
) -> None:
    change(tmp_path / "sentence_bert_config.json", max_seq_length=stated)
    change(tmp_path / "tokenizer_config.json", model_max_length=tokenizer)
    config = {"model_type": kind, "max_position_embeddings": positions, "pad_token_id": 1, "hidden_size": 8}
    assert read_encoder_folder(tmp_path, config).facts.max_tokens == wanted


def test_without_modules_it_is_as_mlx_vlm_does_it(folder: Path) -> None:
    (folder / "modules.json").unlink()
    (folder / "1_Pooling" / "config.json").unlink()
    encoder = read_encoder_folder(folder, config_of(folder))
    assert (encoder.pooling, encoder.facts.normalizes, encoder.problems) == ("mean", True, ())


def test_modules_without_a_normalization_make_plain_vectors(tmp_path: Path) -> None:
    folder = tiny_embedder.build(tmp_path / "m", normalize=False)
    assert not read_encoder_folder(folder, config_of(folder)).facts.normalizes


@pytest.mark.parametrize(
    ("file", "values", "told"),
    [
        ("config.json", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("config.json", {"is_decoder": True}, "is_decoder"),
        ("config.json", {"model_file": "x.py"}, "model_file"),
        ("config.json", {"auto_map": {"AutoModel": "x.X"}}, "auto_map in config.json"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, r"pooling 'cls\+mean' is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pooling 'none' is not supported"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True},
            "pooling 'weightedmean'",
        ),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt"),
    ],
)
def test_what_would_give_wrong_vectors_or_run_code_is_refused_by_name(
    folder: Path, file: str, values: dict[str, Any], told: str
) -> None:
    change(folder / file, **values)
    with pytest.raises(InferdError, match=told) as caught:
        check_model_folder(settings(folder))
    assert caught.value.reason is Reason.MODEL_UNSUPPORTED


def test_model_file_is_refused_even_where_code_is_trusted(folder: Path) -> None:
    change(folder / "config.json", model_file="x.py")
    (folder / "x.py").write_text("raise SystemExit")
    with pytest.raises(InferdError, match="model_file"):
        check_model_folder(settings(folder, trust_remote_code=True))


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ("{", "can't be read"),
        ("{}", "can't be read"),
        ("[3]", "can't be read"),
        ('[{"type": "x.Dense", "path": "2_Dense"}]', "1 dense layers"),
        ('[{"type": "x.LSTM", "path": "2_LSTM"}]', "'LSTM'"),
        ('[{"type": "x.Pooling", "path": "../../etc"}]', "outside"),
    ],
)
def test_odd_modules_are_refused(folder: Path, modules: str, told: str) -> None:
    (folder / "modules.json").write_text(modules)
    with pytest.raises(InferdError, match=told):
        check_model_folder(settings(folder))


@pytest.mark.parametrize("key", ["adapter_path", "draft_path", "kv_bits"])
def test_keys_without_a_meaning_for_embedders_are_refused_by_name(folder: Path, key: str, tmp_path: Path) -> None:
    value = 8 if key == "kv_bits" else tmp_path
    name = "draft_model" if key == "draft_path" else key
    with pytest.raises(InferdError, match=f"{name} is not supported for embedders"):
        check_model_folder(settings(folder, **{key: value}))


def test_a_cut_weight_file_is_corrupt(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InferdError) as caught:
        check_model_folder(settings(folder))
    assert (caught.value.reason, caught.value.facts["file"]) == (Reason.MODEL_CORRUPT, "model.safetensors")


def test_a_language_model_is_none_of_this(tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "m")
    entry = describe(ModelEntry("m", EngineSettings("m", folder)), {}, SamplingDefaults())
    assert (entry.engine.kind, entry.embedder) == (EngineKind.LANGUAGE, None)
