"""A real server whose engines fail as told: `python -m fakes.faulty_server serve --config FILE`.

Only the faults are scripted; the engines under them are real. A model's name chooses faults of its load and its end,
a request's seed chooses faults of its steps:

| name starts with | what happens |
| --- | --- |
| slow-load | the load takes INFERD_TEST_LOAD_SECONDS longer, telling progress, and heeds abandonment |
| stuck-load | the load hangs (deaf to abandonment) while the file INFERD_TEST_STUCK exists |
| broken-warmup | the load fails after the weights were read |
| loud-load | the load fails with 100 KiB of text |
| broken-close | the end raises once the real end is done |

| seed | what happens |
| --- | --- |
| STEP_RAISES | the step raises once this request has got three tokens |
| STEP_BREAKS_ENGINE | the same, and the engine is broken afterwards |
| STEP_HANGS | the step hangs while the file INFERD_TEST_STUCK exists |
| ROW_FAILS | this request's own row fails after three tokens |
| PREFILL_HANGS | the first step with this request hangs while the file INFERD_TEST_STUCK exists |
| FIRST_STEP_RAISES | the first step with this request raises |

An Embed request chooses the same by its dimensions (FAULTS_OF_DIMENSIONS), at its third batch.

INFERD_TEST_STEP_SECONDS makes every step take so much longer, so that a short answer runs for as long as a test needs;
INFERD_TEST_HEARTBEAT_SECONDS makes watches tell signs of life so often; INFERD_TEST_KEEPALIVE_SECONDS makes the server
ask its clients for one so often, and wait as long for it. SIGUSR1 blocks the event loop while INFERD_TEST_STUCK exists.
"""

import os
import signal
import sys
import time
from pathlib import Path

from inferd_server.core.embedding import EncodeRequest
from inferd_server.core.generation import DecodeRequest, Token
from inferd_server.core.model import EngineSettings, LoadAbandoned, Loading
from inferd_server.engine.engine import Engine, StepResult

STEP_RAISES = 666_001
STEP_BREAKS_ENGINE = 666_002
STEP_HANGS = 666_003
ROW_FAILS = 666_004
PREFILL_HANGS = 666_005
FIRST_STEP_RAISES = 666_006

FAULTS_OF_DIMENSIONS = {7: STEP_RAISES, 6: STEP_BREAKS_ENGINE, 5: STEP_HANGS, 4: ROW_FAILS}

STEP_SECONDS = float(os.environ.get("INFERD_TEST_STEP_SECONDS", "0"))


def _stuck() -> bool:
    return Path(os.environ["INFERD_TEST_STUCK"]).exists()


class FaultyEngine:
    """A real engine with scripted faults."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._faults: dict[int, int] = {}
        self._tokens: dict[int, int] = {}
        self._first_step_faults: dict[int, int] = {}
        self._broken = False

    def __getattr__(self, attribute: str) -> object:
        return getattr(self._engine, attribute)

    @property
    def is_broken(self) -> bool:
        return self._broken or self._engine.is_broken

    def insert(self, request: DecodeRequest | EncodeRequest) -> int:
        uid = self._engine.insert(request)
        if isinstance(request, EncodeRequest):
            fault = FAULTS_OF_DIMENSIONS.get(request.dimensions, 0)
        else:
            fault = request.sampling.seed
        if fault in (PREFILL_HANGS, FIRST_STEP_RAISES):
            self._first_step_faults[uid] = fault
        elif STEP_RAISES <= fault <= ROW_FAILS:
            self._faults[uid] = fault
            self._tokens[uid] = 0
        return uid

    def step(self) -> StepResult:
        time.sleep(STEP_SECONDS)
        self._fail_first_steps()
        result = self._engine.step()
        for token in result.tokens:
            if token.uid in self._faults:
                self._tokens[token.uid] += 1
                if self._tokens[token.uid] == 3:
                    self._fail(token)
        return result

    def _fail_first_steps(self) -> None:
        while self._first_step_faults:
            uid, fault = self._first_step_faults.popitem()
            while fault == PREFILL_HANGS and _stuck():
                time.sleep(0.02)
            if fault == FIRST_STEP_RAISES:
                self._engine.remove(uid)
                raise RuntimeError("scripted: first step")

    def _fail(self, token: Token) -> None:
        fault = self._faults.pop(token.uid)
        if fault == ROW_FAILS:
            self._engine.remove(token.uid)
            token.failure = "scripted failure"
        elif fault == STEP_HANGS:
            while _stuck():
                time.sleep(0.02)
        else:
            self._broken = fault == STEP_BREAKS_ENGINE
            for uid in list(self._tokens):
                self._engine.remove(uid)
            raise RuntimeError("scripted: secret prompt text")

    def close(self) -> None:
        self._engine.close()
        if self._name.startswith("broken-close"):
            raise RuntimeError("scripted: close")


class AlmostDone:
    """The end of a load that has told all of its progress."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading

    def progress(self, done_nbytes: int, total_nbytes: int) -> None:
        pass

    @property
    def abandoned(self) -> bool:
        return self._loading.abandoned


def open_faulty_engine(settings: EngineSettings, loading: Loading) -> Engine:
    from inferd_server.app import OPENERS

    if settings.name.startswith("slow-load"):
        seconds = float(os.environ.get("INFERD_TEST_LOAD_SECONDS", "1"))
        for part in range(20):
            time.sleep(seconds / 20)
            loading.progress(part, 20)
            if loading.abandoned:
                raise LoadAbandoned
        loading = AlmostDone(loading)
    if settings.name.startswith("loud-load"):
        raise RuntimeError("scripted: " + "ü\n" * 2**15)
    if settings.name.startswith("stuck-load"):
        while _stuck():
            time.sleep(0.02)
    engine = OPENERS[settings.kind](settings, loading)
    if settings.name.startswith("broken-warmup"):
        engine.close()
        raise RuntimeError("scripted: warm-up")
    return FaultyEngine(engine, settings.name)  # type: ignore[return-value]


def block_the_loop(number: int, frame: object) -> None:
    while _stuck():
        time.sleep(0.02)


def main() -> None:
    from functools import partial

    from inferd_client.cli import main as inferd
    from inferd_server import app
    from inferd_server.rpc import server, watch

    watch.HEARTBEAT_SECONDS = float(os.environ.get("INFERD_TEST_HEARTBEAT_SECONDS", watch.HEARTBEAT_SECONDS))
    if seconds := os.environ.get("INFERD_TEST_KEEPALIVE_SECONDS"):
        server.KEEPALIVE_SECONDS = server.KEEPALIVE_TIMEOUT_SECONDS = float(seconds)
    app.serve = partial(app.serve, open_engine=open_faulty_engine)  # type: ignore[assignment]
    signal.signal(signal.SIGUSR1, block_the_loop)
    sys.argv[0] = "inferd"
    inferd()


if __name__ == "__main__":
    main()
