"""A GGUF file becomes a folder that mlx_lm loads."""

import json
from pathlib import Path
from typing import Any

import pytest

from inferd_server.engine.gguf import convert
from support.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted tiny file."""
    place = tmp_path_factory.mktemp("gguf")
    convert(write_gguf(place / "tiny.gguf", layers=2), place / "model", precision="float32")
    return place / "model"


def test_mlx_lm_loads_the_folder_and_generates(folder: Path) -> None:
    from mlx_lm import generate
    from mlx_lm.utils import load_model, load_tokenizer

    model, _ = load_model(folder)
    tokenizer = load_tokenizer(folder, {"trust_remote_code": False})
    assert generate(model, tokenizer, "hello", max_tokens=3)


def test_the_config_says_what_the_file_says(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["max_position_embeddings"]) == (2, 64, 512)
    assert config["rope_traditional"] is True
    assert config["tie_word_embeddings"] is True
    assert "quantization" not in config


def test_weights_keep_their_values(folder: Path) -> None:
    import mlx.core as mx

    source: Any = mx.load(str(folder.parent / "tiny.gguf"), format="gguf")
    made: Any = mx.load(str(folder / "model.safetensors"))
    assert len(made) == len(source)
    assert mx.array_equal(made["model.layers.1.mlp.down_proj.weight"], source["blk.1.ffn_down.weight"])


@pytest.mark.parametrize("text", ["Hello, world", "  two  spaces\n\ttab", "héllo ✓ 日本 🎉", "1234 ab", ""])
def test_the_tokenizer_round_trips(folder: Path, text: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_split_singly_and_control_tokens_are_special(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(tokenizer.encode("1234").ids) == 4
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert tokenizer.decode([2]) == ""


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = write_gguf(tmp_path / "t.gguf")
    convert(source, tmp_path / "m", precision="float32", progress=lambda *call: calls.append(call))
    assert calls == [(i, 11) for i in range(1, 12)]


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "t.gguf", tokenizer__ggml__pre="qwen2")
    with pytest.raises(ValueError, match=r"t\.gguf is not a GGUF file of SmolLM2: .*tokenizer"):
        convert(source, tmp_path / "m", precision="float32")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("content", [b"GGUF" + bytes(20), b"GGUF", b""])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.gguf is not a GGUF file of SmolLM2"):
        convert(tmp_path / "t.gguf", tmp_path / "m", precision="float32")


def test_quantized_weights_are_dequantized_or_kept() -> None:
    import mlx.core as mx

    from inferd_server.engine.gguf import _weights

    dense = mx.random.normal((64, 64))
    packed: dict[str, mx.array] = {}
    for name, bits in (("model.layers.0.mlp.up_proj", 4), ("model.embed_tokens", 8)):
        arrays = mx.quantize(dense, group_size=32, bits=bits)
        packed.update(zip((f"{name}.weight", f"{name}.scales", f"{name}.biases"), arrays, strict=True))
    full = _weights(packed, "float32", lambda done, total: None)
    assert set(full) == {"model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"}
    assert mx.abs(full["model.embed_tokens.weight"] - dense).max().item() < 0.05
    assert mx.abs(full["model.layers.0.mlp.up_proj.weight"] - dense).max().item() < 0.5
    kept = _weights(packed, "4bit", lambda done, total: None)
    assert set(kept) == set(packed)
    assert {array.dtype for array in kept.values()} == {mx.uint32, mx.float32}
