"""What a model's work takes: the formulas against measurement, for every kind of cache."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_server.engine.engine import Engine
from inferd_server.engine.memory import KV_BLOCK_TOKENS, CacheNeed, Footprint, footprint
from support import tiny_architectures, tiny_llama
from support.engine_room import open_engine, request

STEP = 32
NEEDS = {
    "llama": CacheNeed(token_nbytes=2 * 2 * 2 * 8 * 4),
    "gemma3_text": CacheNeed(token_nbytes=2 * 2 * 8 * 4, windows=((16, 2 * 2 * 8 * 4),)),
    "mamba2": CacheNeed(fixed_nbytes=2 * 3008),
    "mamba": CacheNeed(fixed_nbytes=2 * 2816),
    "llama4": CacheNeed(token_nbytes=2 * 2 * 8 * 4, windows=((32 + 256, 2 * 2 * 8 * 4),) * 3),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("architectures")
    return {kind: tiny_architectures.build(root / kind, kind) for kind in NEEDS}


@pytest.fixture
def engine(folders: dict[str, Path], architecture: str) -> Iterator[Engine]:
    engine = open_engine(folders[architecture], prefill_step_size=STEP)
    yield engine
    engine.close()


def measure(engine: Engine, lengths: list[tuple[int, int]], stagger: int) -> tuple[int, int]:
    """Most bytes of caches at the end of any step, and most bytes of everything at any moment.

    As under the scheduler, the engine never has more than `max_rows`.
    """
    import mlx.core as mx

    source = random.Random(0)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    most = steps = live = 0
    left = list(lengths)
    while left or live:
        if left and live < engine.max_rows and (not stagger or steps % stagger == 0):
            prompt, tokens = left.pop(0)
            engine.insert(request([source.randrange(100) for _ in range(prompt)], tokens))
            live += 1
            if not stagger:
                continue
        live -= sum(bool(token.ended) for token in engine.step().tokens)
        steps += 1
        most = max(most, engine.cache_nbytes)
    return most, mx.get_peak_memory() - before


@pytest.mark.parametrize("architecture", NEEDS)
def test_a_probe_of_one_token_tells_what_every_kind_of_cache_takes(engine: Engine, architecture: str) -> None:
    assert engine.footprint.cache == NEEDS[architecture]


@pytest.mark.parametrize("stagger", [0, 7])
@pytest.mark.parametrize("architecture", NEEDS)
def test_no_work_takes_more_than_the_formulas_say(engine: Engine, stagger: int) -> None:
    lengths = [(300, 40), (20, 60), (1, 30), (50, 80), (257, 20)]
    together = min(len(lengths), engine.max_rows)
    longest, context = max(map(sum, lengths)), max(prompt for prompt, _ in lengths)
    caches, peak = measure(engine, lengths, stagger)
    assert caches <= engine.footprint.cache_nbytes(together, longest)
    assert peak <= engine.footprint.peak_nbytes(together, longest, context)


def test_the_formulas_are_not_far_from_what_a_larger_model_takes(tmp_path: Path) -> None:
    engine = open_engine(tiny_llama.build(tmp_path / "mid", layers=4, hidden=256), prefill_step_size=128)
    lengths = [(400, 20), (380, 25), (10, 30)]
    caches, peak = measure(engine, lengths, 3)
    predicted_caches, predicted = engine.footprint.cache_nbytes(3, 420), engine.footprint.peak_nbytes(3, 420, 400)
    assert predicted_caches / 2 < caches <= predicted_caches
    assert predicted / 3 < peak <= predicted
    engine.close()


def test_caches_grow_in_blocks(folders: dict[str, Path]) -> None:
    engine = open_engine(folders["llama"])
    for _ in range(3):
        engine.insert(request([7] * 10, 200))
    for _ in range(20):
        engine.step()
    assert engine.cache_nbytes == 3 * KV_BLOCK_TOKENS * engine.footprint.cache.token_nbytes
    engine.close()


def test_a_footprint_is_read_from_what_a_config_says() -> None:
    empty = footprint({"model_type": "odd"}, CacheNeed(), step_tokens=64, width=100, itemsize=2)
    assert empty == Footprint(CacheNeed(), 0, 64, 0, 400)
    config = {"text_config": {"num_attention_heads": 4, "hidden_size": 8, "num_experts_per_tok": 2}}
    nested = footprint(config, CacheNeed(), step_tokens=64, width=100, itemsize=2)
    assert (nested.heads, nested.activation_nbytes) == (4, (8 * 8 + 32 * 8) * 2)


def test_peaks_grow_with_every_argument_and_are_nothing_without_rows() -> None:
    shape = Footprint(CacheNeed(10, ((64, 7),), 100), heads=4, step_tokens=32, activation_nbytes=5, logits_nbytes=40)
    assert shape.peak_nbytes(0, 1000, 1000) == 0
    peak = shape.peak_nbytes(2, 1000, 500)
    assert peak < min(shape.peak_nbytes(3, 1000, 500), shape.peak_nbytes(2, 1001, 500), shape.peak_nbytes(2, 1000, 501))
    assert shape.cache.nbytes(10_000, 32) - shape.cache.nbytes(5_000, 32) == 50_000  # the window is full
