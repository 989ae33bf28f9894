"""Sizes without reading weights."""

import subprocess
import sys
from pathlib import Path

import pytest

from inferd_server.engine.headers import weight_files, weights_nbytes_on_disk
from inferd_server.engine.memory import AttentionShape, attention_shape, kv_bound_nbytes, prefill_peak_nbytes
from support import tiny_llama
from support.engine_room import open_engine, request


@pytest.mark.parametrize("changes", [{}, {"quantization_bits": 4}, {"shards": 3}])
def test_the_size_by_the_headers_is_that_of_the_parameters(tmp_path: Path, changes: dict[str, int]) -> None:
    folder = tiny_llama.build(tmp_path / "model", **changes)
    engine = open_engine(folder)
    assert weights_nbytes_on_disk(folder) == engine.weights_nbytes
    engine.close()


def test_files_beside_the_index_do_not_count(tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "model", shards=2)
    expected = weights_nbytes_on_disk(folder)
    (folder / "model-stray.safetensors").write_bytes(b"not even weights")
    (folder / "original").mkdir()
    assert weights_nbytes_on_disk(folder) == expected
    assert len(weight_files(folder)) == 2


def test_kv_cache_takes_what_the_formula_says(tiny_model: Path) -> None:
    import json

    shape = attention_shape(json.loads((tiny_model / "config.json").read_text()), itemsize=4)
    assert shape == AttentionShape(layers=2, heads=4, kv_heads=2, head_dim=16, itemsize=4)
    engine = open_engine(tiny_model)
    for _ in range(3):
        engine.insert(request([7] * 10, 200))
    for _ in range(20):
        engine.step()
    assert engine.cache_nbytes == kv_bound_nbytes(shape, [210] * 3) == 3 * 256 * shape.kv_nbytes_per_token
    engine.close()


def test_shapes_that_a_config_does_not_give_are_unknown() -> None:
    assert attention_shape({"model_type": "mamba"}, 4) is None
    assert attention_shape({"num_hidden_layers": "x", "num_attention_heads": 0}, 4) is None
    nested = attention_shape({"text_config": {"num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}}, 2)
    assert nested == AttentionShape(layers=1, heads=2, kv_heads=2, head_dim=8, itemsize=2)
    assert prefill_peak_nbytes(nested, 512, 1000) == 2 * 2 * 512 * 1000 * 4
    assert kv_bound_nbytes(nested, []) == 0


def test_the_pure_parts_import_no_mlx() -> None:
    code = (
        "import sys, inferd_server.engine.headers, inferd_server.engine.memory, inferd_server.engine.engine\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('mlx', 'mlx_lm')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
