"""Keys and values in 8 or 4 bits: mlx_lm's own tokens, less memory, one request at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inferd_server.core.errors import InferdError, Reason
from inferd_server.engine.engine import Engine
from support import tiny_architectures, tiny_llama
from support.engine_room import Reference, ids, open_engine, request, run

PROMPTS = [[7 + (31 * i + j * j) % 200 for j in range(length)] for i, length in enumerate((1, 40, 300))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.build(tmp_path_factory.mktemp("models") / "wide", hidden=256)


@pytest.fixture
def engine(folder: Path, bits: int) -> Iterator[Engine]:
    engine = open_engine(folder, kv_bits=bits, prefix_cache_nbytes=1 << 22, prefill_step_size=64)
    yield engine
    engine.close()


def quantized(reference: Reference, bits: int, prompt: Sequence[int], tokens: int) -> list[int]:
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import QuantizedKVCache

    caches = [QuantizedKVCache(64, bits) for _ in reference.model.layers]
    steps = generate_step(
        mx.array(prompt), reference.model, max_tokens=tokens, prompt_cache=caches, prefill_step_size=64
    )
    return [token for token, _ in steps]


@pytest.mark.parametrize("bits", [8, 4])
def test_tokens_are_those_of_mlx_lm_s_quantized_caches_cached_or_not(engine: Engine, folder: Path, bits: int) -> None:
    reference = Reference(folder)
    assert engine.max_rows == 1
    for cached in (False, True):
        for prompt, tokens in zip(PROMPTS, run(engine, *(request(prompt, 20) for prompt in PROMPTS)), strict=True):
            assert ids(tokens) == quantized(reference, bits, prompt, 20)
            assert (tokens[0].cached_tokens > 0) == (cached and len(prompt) > 64)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.29), (4, 0.17)])
def test_the_cache_takes_a_fraction_of_what_it_took(engine: Engine, folder: Path, share: float) -> None:
    plain = open_engine(folder)
    assert engine.footprint.cache.token_nbytes <= share * plain.footprint.cache.token_nbytes
    engine.insert(request(PROMPTS[2], 20))
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, engine._batch.cache_nbytes)  # type: ignore[attr-defined]
    assert 0 < most <= engine.footprint.cache_nbytes(1, 320)
    plain.close()


def test_a_model_that_it_does_not_work_for_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    windowed = tiny_architectures.build(tmp_path / "windowed", "gemma3_text")
    for folder, why in ((windowed, "not all of its caches are plain"), (tiny_model, "heads are 16 wide")):
        with pytest.raises(InferdError, match=why) as caught:
            open_engine(folder, kv_bits=8)
        assert caught.value.reason is Reason.MODEL_UNSUPPORTED
