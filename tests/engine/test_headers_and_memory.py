"""Sizes without reading weights."""

import subprocess
import sys
from pathlib import Path

import pytest

from inferd_server.engine.headers import weight_files, weights_nbytes_on_disk
from support import tiny_llama
from support.engine_room import open_engine


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


def test_the_pure_parts_import_no_mlx() -> None:
    code = (
        "import sys, inferd_server.engine.headers, inferd_server.engine.memory, inferd_server.engine.engine\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('mlx', 'mlx_lm')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
