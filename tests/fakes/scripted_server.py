"""A real server whose models say what they are told: `python -m fakes.scripted_server serve --config FILE`.

INFERD_TEST_SCRIPTS names a file with a JSON list of texts; a request's seed chooses one. The engines are real and do
their work; only the tokens that come out are the script's, and then the end of the output. A request with a seed beyond
the scripts is answered by the model. INFERD_TEST_STEP_SECONDS makes every step take so much longer.
"""

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from inferd_server.core.generation import DecodeRequest
from inferd_server.core.model import EngineSettings, Loading
from inferd_server.engine.engine import Engine, StepResult
from inferd_server.text.tokenizer import Tokenizer

STEP_SECONDS = float(os.environ.get("INFERD_TEST_STEP_SECONDS", "0"))


class ScriptedOutput:
    """A real engine whose sequences say their scripts."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        texts = json.loads(Path(os.environ["INFERD_TEST_SCRIPTS"]).read_text())
        self._scripts = [tokenizer.encode(text) for text in texts]
        self._end_id = min(tokenizer.end_ids)
        self._left: dict[int, list[int]] = {}

    def __getattr__(self, attribute: str) -> object:
        return getattr(self._engine, attribute)

    def insert(self, request: DecodeRequest) -> int:
        if request.sampling.seed >= len(self._scripts):
            return self._engine.insert(request)
        uid = self._engine.insert(replace(request, end_ids=frozenset()))
        self._left[uid] = self._scripts[request.sampling.seed][len(request.emitted_ids) :]
        return uid

    def step(self) -> StepResult:
        time.sleep(STEP_SECONDS)
        result = self._engine.step()
        for token in result.tokens:
            left = self._left.get(token.uid)
            if left is None:
                continue
            if left:
                token.token_id = left.pop(0)
            else:
                token.token_id, token.ended = self._end_id, "end_id"
                self._engine.remove(token.uid)
        return result

    def remove(self, uid: int) -> None:
        self._left.pop(uid, None)
        self._engine.remove(uid)


def open_scripted_engine(settings: EngineSettings, loading: Loading) -> Engine:
    from inferd_server.engine.language import open_language_engine

    tokenizer = Tokenizer.load(settings.path)
    return ScriptedOutput(open_language_engine(settings, loading), tokenizer)  # type: ignore[return-value]


def main() -> None:
    from inferd_client.cli import main as inferd
    from inferd_server import app

    app.serve = partial(app.serve, open_engine=open_scripted_engine)  # type: ignore[assignment]
    sys.argv[0] = "inferd"
    inferd()


if __name__ == "__main__":
    main()
