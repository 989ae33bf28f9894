"""A scripted Engine: deterministic tokens, and every way to misbehave that the scheduler must survive."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inferd_server.core.generation import DecodeRequest, Sampling, Token, TokenLogprob
from inferd_server.core.model import EngineSettings, Loading
from inferd_server.engine.engine import StepResult
from inferd_server.engine.memory import Footprint

END_ID = 2


def request(
    *prompt_ids: int, max_tokens: int = 8, emitted_ids: tuple[int, ...] = (), top_logprobs: int | None = None
) -> DecodeRequest:
    """A request for `max_tokens` tokens behind `prompt_ids`."""
    return DecodeRequest(prompt_ids or (5,), Sampling(0.0), max_tokens, frozenset({END_ID}), emitted_ids, top_logprobs)


def expected_ids(decode: DecodeRequest, count: int | None = None) -> list[int]:
    """The ids that ScriptedEngine emits for a request (`count` of them, else max_tokens)."""
    seed, done = sum(decode.prompt_ids), len(decode.emitted_ids)
    return [10 + (seed * 31 + position * 7) % 199 for position in range(done, done + (count or decode.max_tokens))]


@dataclass(slots=True)
class _Row:
    request: DecodeRequest
    prefill_left: int
    emitted: int = 0
    is_prefilled: bool = False


@dataclass
class ScriptedEngine:
    """Set the attributes before or during a run; they are read on the engine's thread.

    Attributes:
        prefill_steps: steps between an insert and the first token.
        prefill_token_seconds: what the first step with a sequence takes longer for each token of its prompt.
        ends_after: tokens after which a sequence meets its end id (0: never, it ends by length).
        failing_prompts: first prompt id -> message: the sequence fails alone at its second token.
        step_errors: raised by the next steps, one each.
        insert_errors: raised by the next inserts, one each.
        gate: a step (and `close_gate`: the close) waits for it; clear to hang the engine.
    """

    max_rows: int = 64
    prefill_steps: int = 0
    prefill_token_seconds: float = 0.0
    ends_after: int = 0
    step_seconds: float = 0.0002  # a real one takes time too; readers get their turn
    failing_prompts: dict[int, str] = field(default_factory=dict)
    step_errors: list[BaseException] = field(default_factory=list)
    insert_errors: list[Exception] = field(default_factory=list)
    close_error: Exception | None = None
    loses_rows_silently: bool = False
    is_broken: bool = False
    weights_nbytes: int = 1000
    footprint: Footprint = field(default_factory=Footprint)  # takes nothing
    prefix_cache_bounds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.close_gate = threading.Event()
        self.close_gate.set()
        self.in_step = threading.Event()
        self.rows: dict[int, _Row] = {}
        self.order: list[tuple[int, ...]] = []  # prompts, as inserted
        self.emitted: dict[tuple[int, ...], list[int]] = {}  # by prompt, everything ever emitted
        self.most_rows = 0
        self.steps = 0
        self.removed: list[int] = []
        self.is_closed = False
        self.thread_ids: set[int] = set()
        self._uids = 100

    @property
    def cache_nbytes(self) -> int:
        return 10 * len(self.rows)

    @property
    def has_work(self) -> bool:
        return bool(self.rows)

    def insert(self, request: DecodeRequest) -> int:
        self._touch()
        if self.insert_errors:
            raise self.insert_errors.pop(0)
        self._uids += 1
        self.rows[self._uids] = _Row(request, self.prefill_steps)
        self.order.append(request.prompt_ids)
        self.most_rows = max(self.most_rows, len(self.rows))
        return self._uids

    def step(self) -> StepResult:
        self._touch()
        self.in_step.set()
        self.gate.wait()
        prefill_tokens = self._prefill()
        self.in_step.clear()
        self.steps += 1
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.loses_rows_silently:
            self.rows.clear()
        if self.step_errors:
            self.rows.clear()
            raise self.step_errors.pop(0)
        tokens = [token for uid in list(self.rows) if (token := self._advance(uid))]
        return StepResult(tokens, prefill_tokens)

    def remove(self, uid: int) -> None:
        self._touch()
        if self.rows.pop(uid, None) is not None:
            self.removed.append(uid)

    def bound_prefix_cache(self, nbytes: int) -> None:
        self._touch()
        self.prefix_cache_bounds.append(nbytes)

    def close(self) -> None:
        self._touch()
        self.close_gate.wait()
        self.is_closed = True
        if self.close_error is not None:
            raise self.close_error

    def _prefill(self) -> int:
        fresh = [row for row in self.rows.values() if not row.is_prefilled]
        count = sum(len(row.request.prompt_ids) for row in fresh)
        if count * self.prefill_token_seconds:
            time.sleep(count * self.prefill_token_seconds)
        for row in fresh:
            row.is_prefilled = True
        return count

    def _advance(self, uid: int) -> Token | None:
        row = self.rows[uid]
        if row.prefill_left:
            row.prefill_left -= 1
            return None
        failure = self.failing_prompts.get(row.request.prompt_ids[0], "")
        if failure and row.emitted == 1:
            del self.rows[uid]
            return Token(uid, 0, failure=failure)
        row.emitted += 1
        if self.ends_after and row.emitted > self.ends_after:
            del self.rows[uid]
            return Token(uid, END_ID, ended="end_id")
        ended = "length" if row.emitted == row.request.max_tokens else ""
        if ended:
            del self.rows[uid]
        token_id = expected_ids(row.request, row.emitted)[-1]
        self.emitted.setdefault(row.request.prompt_ids, []).append(token_id)
        return Token(uid, token_id, _logprob(row.request, token_id), ended)

    def _touch(self) -> None:
        self.thread_ids.add(threading.get_ident())


def _logprob(request: DecodeRequest, token_id: int) -> TokenLogprob | None:
    if request.top_logprobs is None:
        return None
    return TokenLogprob(token_id, -1.0, tuple((i, -2.0) for i in range(request.top_logprobs)))


class ScriptedLoading:
    """A Loading that records progress and is abandoned at will."""

    def __init__(self) -> None:
        self.abandoned = False
        self.reported: list[tuple[int, int]] = []

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        self.reported.append((done_nbytes, total_nbytes))


def opens(engine: ScriptedEngine) -> Callable[[EngineSettings, Loading], ScriptedEngine]:
    """An open_engine that answers with `engine`, noting the thread."""

    def open_engine(settings: EngineSettings, loading: Loading) -> ScriptedEngine:
        engine.thread_ids.add(threading.get_ident())
        loading.progress(1000, 1000)
        return engine

    return open_engine
