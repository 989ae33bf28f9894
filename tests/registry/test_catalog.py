"""The catalog reads a folder's files as they are, whole or damaged, and never refuses to look."""

import json
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from inferd_server.core.model import Capability, EngineSettings, ModelEntry, SamplingDefaults
from inferd_server.registry.catalog import describe, read_facts, weight_files, weights_nbytes
from support import tiny_adapter, tiny_llama


def write_safetensors(file: Path, sizes: dict[str, int], *, cut: int = 0) -> None:
    """A file with uint8 tensors of these sizes; its last `cut` bytes are missing."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end - cut))


def write_index(folder: Path, files: list[str], total_size: int = 0) -> None:
    index = {"metadata": {"total_size": total_size}, "weight_map": {f"t{i}": file for i, file in enumerate(files)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small folder that is whole."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 32}))
    write_safetensors(tmp_path / "model.safetensors", {"a": 100, "b": 28})
    return tmp_path


def entry_at(folder: Path, **keys: Any) -> ModelEntry:
    return ModelEntry(name="m", engine=EngineSettings(name="m", path=folder), **keys)


def test_a_real_folder_is_described_in_full(tiny_model: Path) -> None:
    facts = read_facts(tiny_model)
    assert (facts.architecture, facts.context_length, facts.vocabulary_size) == ("llama", 4096, 263)
    assert facts.chat.has_template
    assert facts.quantization_bits == 0
    assert facts.damage == ()
    assert len(facts.revision) == 16


def test_the_estimate_is_what_the_tensors_take_in_memory(tiny_model: Path) -> None:
    import mlx.core as mx

    arrays = mx.load(str(tiny_model / "model.safetensors"))
    assert weights_nbytes(tiny_model) == sum(array.nbytes for array in arrays.values())


def test_quantization_is_read_from_the_config(tmp_path: Path) -> None:
    assert read_facts(tiny_llama.build(tmp_path / "q", quantization_bits=4)).quantization_bits == 4


def test_shards_count_as_their_index_names_them(tiny_model: Path, tmp_path: Path) -> None:
    sharded = tiny_llama.build(tmp_path / "sharded", shards=3)
    assert weights_nbytes(sharded) == weights_nbytes(tiny_model)


def test_files_that_the_index_does_not_name_do_not_count(folder: Path) -> None:
    write_safetensors(folder / "part-1.safetensors", {"a": 10})
    (folder / "original").mkdir()
    write_safetensors(folder / "original" / "part-2.safetensors", {"a": 999})
    write_index(folder, ["part-1.safetensors"])
    assert weights_nbytes(folder) == 10


def test_without_an_index_every_safetensors_file_beside_the_config_counts(folder: Path) -> None:
    write_safetensors(folder / "other.safetensors", {"c": 2})
    (folder / "original").mkdir()
    write_safetensors(folder / "original" / "x.safetensors", {"a": 999})
    assert weights_nbytes(folder) == 130


def test_a_gguf_file_counts_where_there_are_no_safetensors(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(bytes(77))
    assert weights_nbytes(folder) == 128
    (folder / "model.safetensors").unlink()
    assert weights_nbytes(folder) == 77


def test_an_index_cannot_point_outside_its_folder(folder: Path) -> None:
    write_index(folder, ["../../etc/passwd", "/etc/passwd", "..", "model.safetensors"])
    assert {file.parent for file in weight_files(folder)} <= {folder}
    assert weights_nbytes(folder) == 128


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (b"", 0),
        (b"short", 5),
        (b"\xff" * 16, 16),
        (struct.pack("<Q", 4) + b"nope" + bytes(8), 20),
        (struct.pack("<Q", 2) + b"[]" + bytes(8), 18),
        (struct.pack("<Q", 9) + b'{"a": 1}\n' + bytes(8), 25),
    ],
    ids=["empty", "short", "garbage", "no json", "a list", "no offsets"],
)
def test_a_broken_header_is_noted_and_the_file_counts_whole(folder: Path, content: bytes, size: int) -> None:
    (folder / "model.safetensors").write_bytes(content)
    facts = read_facts(folder)
    assert facts.weights_nbytes == size
    assert any(line.startswith("model.safetensors: ") for line in facts.damage)


def test_a_truncated_file_is_noted(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"a": 100}, cut=40)
    assert "model.safetensors: truncated: 40 bytes are missing" in read_facts(folder).damage


def test_a_missing_shard_is_noted_and_the_index_gives_the_size(folder: Path) -> None:
    write_index(folder, ["model.safetensors", "gone.safetensors"], total_size=5000)
    facts = read_facts(folder)
    assert facts.weights_nbytes == 5000
    assert "gone.safetensors is missing" in facts.damage


def test_an_index_total_does_not_replace_an_exact_sum(folder: Path) -> None:
    write_index(folder, ["model.safetensors"], total_size=5000)
    assert weights_nbytes(folder) == 128


def test_an_empty_folder_has_no_size_and_says_why(tmp_path: Path) -> None:
    facts = read_facts(tmp_path)
    assert (facts.weights_nbytes, facts.revision, facts.architecture) == (0, "", "")
    assert set(facts.damage) == {"config.json is missing", "no weight files"}


def test_a_missing_folder_is_like_an_empty_one(tmp_path: Path) -> None:
    assert read_facts(tmp_path / "nowhere").weights_nbytes == 0


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "\x00", "null", "{'a': 1}"])
def test_a_broken_config_is_noted(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    assert "config.json is not a JSON object" in read_facts(folder).damage


def test_values_of_the_wrong_type_are_as_if_absent(folder: Path) -> None:
    config = {
        "model_type": ["llama"],
        "vocab_size": "many",
        "max_position_embeddings": True,
        "quantization": [4],
        "text_config": 7,
    }
    (folder / "config.json").write_text(json.dumps(config))
    facts = read_facts(folder)
    assert (facts.architecture, facts.vocabulary_size, facts.context_length, facts.quantization_bits) == ("", 0, 0, 0)


@pytest.mark.parametrize(
    ("config", "context_length"),
    [
        ({"max_position_embeddings": 2048, "n_positions": 1}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"max_position_embeddings": 64, "text_config": {"max_position_embeddings": 512}}, 64),
        ({}, 0),
    ],
)
def test_the_context_length_is_found_where_models_state_it(
    folder: Path, config: dict[str, Any], context_length: int
) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    assert read_facts(folder).context_length == context_length


def test_the_tokenizers_limit_stands_in_for_a_missing_context_length(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 333}))
    assert read_facts(folder).context_length == 333
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert read_facts(folder).context_length == 0


def test_a_chat_template_in_any_of_its_places_gives_the_capability(folder: Path) -> None:
    def capabilities() -> frozenset[Capability]:
        return describe(entry_at(folder), {}, SamplingDefaults()).capabilities

    assert capabilities() == {Capability.GENERATE}
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert capabilities() == {Capability.GENERATE, Capability.CHAT}
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ tools }}"}))
    assert capabilities() == {Capability.GENERATE, Capability.CHAT}


def test_the_revision_changes_with_the_weights_and_not_with_the_place(folder: Path, tmp_path: Path) -> None:
    first = read_facts(folder).revision
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert read_facts(copy).revision == first
    write_safetensors(copy / "model.safetensors", {"a": 100, "b": 29})
    assert read_facts(copy).revision != first


def test_what_a_person_stated_outranks_the_files(folder: Path) -> None:
    entry = describe(entry_at(folder, revision="v1", estimated_bytes=7), {}, SamplingDefaults())
    assert (entry.revision, entry.estimated_bytes, entry.is_estimate_stated) == ("v1", 7, True)
    entry = describe(entry_at(folder), {}, SamplingDefaults())
    assert (len(entry.revision), entry.estimated_bytes, entry.is_estimate_stated) == (16, 128, False)


def test_sampling_defaults_rank_entry_then_files_then_server(folder: Path) -> None:
    recommended = {"temperature": 0.2, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1, "max_new_tokens": 9}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    server = SamplingDefaults(temperature=0.7, top_p=0.99, min_p=0.05, max_tokens=100)
    defaults = describe(entry_at(folder), {"temperature": 1.5}, server).defaults
    assert defaults == SamplingDefaults(
        temperature=1.5, top_p=0.8, top_k=20, min_p=0.05, repetition_penalty=1.1, max_tokens=100
    )


@pytest.mark.parametrize(
    "value", ['{"temperature": NaN}', '{"temperature": -1}', '{"top_p": 0}', '{"top_k": 1.5}', '{"top_p": true}', "3"]
)
def test_implausible_recommendations_are_left_out(folder: Path, value: str) -> None:
    (folder / "generation_config.json").write_text(value)
    assert describe(entry_at(folder), {}, SamplingDefaults()).defaults == SamplingDefaults()


def test_a_folder_of_many_shards_is_read_in_no_time(tmp_path: Path) -> None:
    names = [f"model-{i}.safetensors" for i in range(100)]
    for name in names:
        write_safetensors(tmp_path / name, {f"t{j}": 8 for j in range(20)})
    write_index(tmp_path, names)
    started = time.perf_counter()
    assert weights_nbytes(tmp_path) == 100 * 20 * 8
    assert time.perf_counter() - started < 2


def test_the_revision_tells_adapters_of_one_shape_apart(tiny_model: Path, tmp_path: Path) -> None:
    one, other = (tiny_adapter.build(tmp_path / str(seed), tiny_model, seed=seed) for seed in (1, 2))
    copy = Path(shutil.copytree(one, tmp_path / "copy"))
    first = read_facts(tiny_model, one).revision
    assert read_facts(tiny_model, one).weights_nbytes == weights_nbytes(tiny_model, one) > weights_nbytes(tiny_model)
    assert read_facts(tiny_model, copy).revision == first
    assert len({first, read_facts(tiny_model, other).revision, read_facts(tiny_model).revision}) == 3
    config = json.loads((copy / "adapter_config.json").read_text())
    config["lora_parameters"]["scale"] = 3.0
    (copy / "adapter_config.json").write_text(json.dumps(config))
    assert read_facts(tiny_model, copy).revision != first


def test_a_broken_adapter_is_damage_and_never_stops_the_reading(tiny_model: Path, tmp_path: Path) -> None:
    adapter = tiny_adapter.build(tmp_path / "adapter", tiny_model)
    (adapter / "adapter_config.json").write_text("[]")
    (adapter / "adapters.safetensors").write_bytes(b"garbage")
    facts = read_facts(tiny_model, adapter)
    assert facts.weights_nbytes == weights_nbytes(tiny_model) + 7
    assert len(facts.damage) == 2
    assert read_facts(tiny_model, tmp_path / "nowhere").weights_nbytes == weights_nbytes(tiny_model)


def test_a_draft_model_counts_and_its_damage_is_told_apart(tiny_model: Path, folder: Path, tmp_path: Path) -> None:
    assert weights_nbytes(tiny_model, None, folder) == weights_nbytes(tiny_model) + 128
    empty = tmp_path / "empty"
    empty.mkdir()
    assert read_facts(tiny_model, None, empty).damage == ("draft model: no weight files",)
    assert weights_nbytes(empty, None, folder) == 0, "a model that can't be measured must be given a size"
