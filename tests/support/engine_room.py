"""Opening and driving an engine in a test, and mlx_lm's own answers to compare with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferd_server.core.generation import DecodeRequest, Sampling, Token
from inferd_server.core.model import EngineSettings
from inferd_server.engine.engine import Engine

GREEDY = Sampling(temperature=0.0)
MLX_SCALARS_NBYTES = 64
"""MLX keeps scalars of its own (its random state, constants of compiled functions), and which of them is not the same
each time: with nothing of ours left, active memory was seen 8 and 12 bytes up, and down again."""


@dataclass
class LoadingFake:
    """Notes progress; is abandoned once `abandon_after` reports came in (never by default)."""

    abandon_after: int = 1 << 30
    reports: list[tuple[int, int]] = field(default_factory=list)

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        self.reports.append((done_nbytes, total_nbytes))

    @property
    def abandoned(self) -> bool:
        return len(self.reports) >= self.abandon_after


def settings(folder: Path, **changes: Any) -> EngineSettings:
    return EngineSettings(name="tiny", path=folder, **changes)


def open_engine(folder: Path, **changes: Any) -> Engine:
    from inferd_server.engine.language import open_language_engine

    return open_language_engine(settings(folder, **changes), LoadingFake())


def request(prompt: Sequence[int], tokens: int = 16, sampling: Sampling = GREEDY, **changes: Any) -> DecodeRequest:
    return DecodeRequest(tuple(prompt), sampling, tokens, **changes)


def finish(engine: Engine, tokens: dict[int, list[Token]] | None = None) -> dict[int, list[Token]]:
    """Step until nothing is left; tokens by uid, behind those given."""
    by_uid = tokens if tokens is not None else {}
    while engine.has_work:
        collect(by_uid, engine.step().tokens)
    return by_uid


def collect(by_uid: dict[int, list[Token]], tokens: Iterable[Token]) -> None:
    for token in tokens:
        by_uid.setdefault(token.uid, []).append(token)


def ids(tokens: Iterable[Token]) -> list[int]:
    return [token.token_id for token in tokens]


def run(engine: Engine, *requests: DecodeRequest) -> list[list[Token]]:
    """All requests at once, to their ends."""
    uids = [engine.insert(each) for each in requests]
    by_uid = finish(engine)
    return [by_uid[uid] for uid in uids]


class Reference:
    """mlx_lm's own single-sequence decoding of the same folder, and the same adapter."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        from inferd_server.engine.upstream import load_adapters, load_model

        self.model, _ = load_model(folder)
        if adapter is not None:
            load_adapters(self.model, str(adapter)).eval()  # as mlx_lm.load does

    def greedy(self, prompt: Sequence[int], tokens: int = 16) -> list[int]:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        steps = generate_step(mx.array(list(prompt)), self.model, max_tokens=tokens)
        return [token for token, _ in steps]

    def logits(self, context: Sequence[int]) -> Any:
        """Logits behind the last token, as a NumPy vector."""
        import mlx.core as mx
        import numpy as np

        return np.array(self.model(mx.array([list(context)]))[0, -1].astype(mx.float32))
