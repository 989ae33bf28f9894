"""An embedder's vectors: as an independent BERT has them, the same alone and in any batch."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferd_server.core.embedding import Encoded, EncodeRequest
from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.model import EngineKind, EngineSettings, LoadAbandoned
from support import tiny_embedder
from support.engine_room import MLX_SCALARS_NBYTES, LoadingFake
from support.numpy_bert import NumpyBert

KINDS = tuple(tiny_embedder.CONFIGS)


def settings(folder: Path, **changes: Any) -> EngineSettings:
    return EngineSettings(name="tiny", path=folder, kind=EngineKind.EMBEDDING, **changes)


def open_engine(folder: Path, loading: LoadingFake | None = None, **changes: Any) -> Any:
    from inferd_server.engine.embedding import open_embedding_engine

    return open_embedding_engine(settings(folder, **changes), loading or LoadingFake())


def run(engine: Any, *requests: EncodeRequest) -> list[dict[int, np.ndarray]]:
    """All requests at once, to their ends: vectors by index for each."""
    uids = [engine.insert(request) for request in requests]
    vectors: dict[int, dict[int, np.ndarray]] = {uid: {} for uid in uids}
    ended = []
    while engine.has_work:
        for piece in engine.step().tokens:
            assert not piece.failure, piece.failure
            vectors[piece.uid].update(unpack(piece))
            ended += [piece.uid] * bool(piece.ended)
    assert sorted(ended) == uids
    return [vectors[uid] for uid in uids]


def unpack(piece: Encoded) -> dict[int, np.ndarray]:
    return {index: np.frombuffer(packed, dtype="<f4") for index, packed in piece.vectors}


def request(*texts: Sequence[int], **options: Any) -> EncodeRequest:
    return EncodeRequest(tuple((i, tuple(ids)) for i, ids in enumerate(texts)), **options)


def random_texts(count: int, longest: int = 60, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(5, 60) for _ in range(source.randint(1, longest))] for _ in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("embedders")
    return {kind: tiny_embedder.build(root / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def bert(folders: dict[str, Path]) -> Iterator[Any]:
    engine = open_engine(folders["bert"])
    yield engine
    engine.close()


def test_vectors_are_those_of_an_independent_bert(bert: Any, folders: dict[str, Path]) -> None:
    reference = NumpyBert(folders["bert"])
    texts = random_texts(20)
    for normalize in (True, False):
        (vectors,) = run(bert, request(*texts, normalize=normalize))
        for i, ids in enumerate(texts):
            np.testing.assert_allclose(vectors[i], reference.vector(ids, normalize=normalize), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_a_batch_has_the_vector_it_has_alone(folders: dict[str, Path], kind: str) -> None:
    engine = open_engine(folders[kind])
    texts = random_texts(12)
    (together,) = run(engine, request(*texts))
    for i, ids in enumerate(texts):
        (alone,) = run(engine, request(ids))
        np.testing.assert_allclose(together[i], alone[0], atol=1e-6)
    assert engine._queue.batches
    engine.close()


def test_requests_share_batches_and_get_their_own_vectors(bert: Any) -> None:
    texts = random_texts(30)
    (whole,) = run(bert, request(*texts))
    parts = run(bert, *(request(ids) for ids in texts))
    for i in range(len(texts)):
        np.testing.assert_allclose(parts[i][0], whole[i], atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_scaled_again_to_length_1(bert: Any) -> None:
    (whole,) = run(bert, request([7, 8, 9], normalize=False))
    (kept,) = run(bert, request([7, 8, 9], dimensions=5, normalize=False))
    np.testing.assert_array_equal(kept[0], whole[0][:5])
    (scaled,) = run(bert, request([7, 8, 9], dimensions=5))
    np.testing.assert_allclose(scaled[0], whole[0][:5] / np.linalg.norm(whole[0][:5]), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_the_pooling_is_the_folders(tmp_path: Path, pooling: str) -> None:
    folder = tiny_embedder.build(tmp_path / "m", pooling=pooling)
    engine = open_engine(folder)
    ids = [7, 9, 11, 13]
    states = NumpyBert(folder).states(ids)
    wanted = {"mean": states.mean(axis=0), "cls": states[0], "max": states.max(axis=0), "lasttoken": states[-1]}
    (vectors,) = run(engine, request(ids, [1] * 9, normalize=False))
    np.testing.assert_allclose(vectors[0], wanted[pooling], atol=1e-5)
    engine.close()


def test_a_request_dropped_between_batches_brings_nothing_more_and_holds_nobody_up(bert: Any) -> None:
    large, small = bert.insert(request(*[[5] * 60] * 64)), bert.insert(request([6, 7]))
    first = bert.step().tokens
    assert [piece.uid for piece in first] == [large]
    bert.remove(large)
    bert.remove(large)
    pieces = [piece for _ in range(1) for piece in bert.step().tokens]
    assert [(piece.uid, piece.ended) for piece in pieces] == [(small, "all")]
    assert not bert.has_work


@pytest.mark.parametrize(
    "bad",
    [
        request([]),
        request([5], [-1]),
        request([5, 10_000]),
        request([5] * (tiny_embedder.MAX_TOKENS + 1)),
        request([5], dimensions=tiny_embedder.WIDTH + 1),
    ],
)
def test_what_would_read_foreign_memory_is_refused(bert: Any, bad: EncodeRequest) -> None:
    with pytest.raises(InferdError) as caught:
        bert.insert(bad)
    assert caught.value.reason is Reason.INVALID_PARAMETER
    assert not bert.has_work


def test_a_vector_that_is_no_number_fails_its_own_request_alone(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = bert._encode

    def with_nan(texts: Sequence[Sequence[int]], *rest: Any) -> Any:
        vectors = encode(texts, *rest)
        vectors[[8 in ids for ids in texts]] = np.nan
        return vectors

    monkeypatch.setattr(bert, "_encode", with_nan)
    good, bad = bert.insert(request([5, 6], [7, 9])), bert.insert(request([5, 8], [9, 9]))
    pieces = {piece.uid: piece for piece in bert.step().tokens}
    assert pieces[bad].failure
    assert pieces[good].ended == "all"
    assert not bert.has_work


def test_a_step_that_fails_loses_what_it_held_and_the_engine_goes_on(
    bert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert.insert(request([5, 6]))
    with monkeypatch.context() as patch:
        patch.setattr(bert, "_encode", lambda *texts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bert.step()
        assert bert.is_broken  # the warm-up failed too
    bert._start_again()
    assert not bert.is_broken
    assert not bert.has_work
    assert len(run(bert, request([5, 6]))[0]) == 1


def test_progress_is_told_in_bytes_and_a_load_can_be_abandoned(folders: dict[str, Path]) -> None:
    import mlx.core as mx

    loading = LoadingFake()
    engine = open_engine(folders["bert"], loading)
    assert loading.reports[-1] == (engine.weights_nbytes, engine.weights_nbytes)
    engine.close()
    before = mx.get_active_memory()
    with pytest.raises(LoadAbandoned):
        open_engine(folders["bert"], LoadingFake(abandon_after=1))
    assert mx.get_active_memory() <= before + MLX_SCALARS_NBYTES


def test_nothing_is_left_in_memory_after_the_close(folders: dict[str, Path]) -> None:
    import mlx.core as mx

    open_engine(folders["bert"]).close()
    before = mx.get_active_memory()
    engine = open_engine(folders["bert"])
    run(engine, request(*random_texts(20)))
    assert mx.get_active_memory() >= before + engine.weights_nbytes
    engine.close()
    assert mx.get_active_memory() <= before + MLX_SCALARS_NBYTES


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_covers_what_a_batch_takes(folders: dict[str, Path], kind: str) -> None:
    engine = open_engine(folders[kind], prefill_step_size=256)
    for shape in ("one long", "many short", "many long", "mixed"):
        measured, formula = peak_of(engine, shape)
        print(kind, shape, measured, formula, round(formula / measured, 2))
        assert measured <= formula
    engine.close()


def peak_of(engine: Any, shape: str) -> tuple[int, int]:
    """Bytes at the most, measured and by the formula."""
    import mlx.core as mx

    longest = tiny_embedder.MAX_TOKENS
    texts = {
        "one long": [[5] * longest],
        "many short": [[5, 6, 7]] * 200,
        "many long": [[5] * longest] * 32,
        "mixed": random_texts(64, longest),
    }[shape]
    asked = request(*texts)
    run(engine, asked)
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run(engine, asked)
    measured = mx.get_peak_memory() - before
    return measured, engine.footprint.peak_nbytes(1, asked.total_tokens, asked.context_tokens)
