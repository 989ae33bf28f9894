"""The floor: a bare loop over mlx-lm's BatchGenerator, which every figure of the server is a ratio of.

    python benchmarks/floor.py MODEL_FOLDER

Default settings, but for room for all rows at once. No detokenizing, no queue, no other thread: nothing that serves the
same tokens on this machine with this library can be much faster. It computes every prompt whole and knows no
constraints. Answers commands on stdin (workload.py).
"""

import sys
import time
from pathlib import Path
from typing import Any

from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model, load_tokenizer
from workload import SETTLED_TOKENS, Asked, Batch, Measurement, Reception, Trial, answer_commands

ROWS = 64


class Floor:
    """One model in this process and the loop over it."""

    def __init__(self, folder: Path) -> None:
        self.model, _ = load_model(folder)
        self.tokenizer = load_tokenizer(folder, {"trust_remote_code": False})

    def run(self, trial: dict[str, Any], with_ids: bool = False) -> Measurement:
        """Run a trial; with `with_ids` the outputs' token ids come back too."""
        task = Trial(**trial)
        generator = BatchGenerator(self.model, completion_batch_size=ROWS)
        try:
            batches = [
                self._batch(generator, task, requests, task.long(number), with_ids)
                for number, requests in enumerate(task.batches())
            ]
        finally:
            generator.close()
        return Measurement.of(batches)

    def _batch(
        self, generator: BatchGenerator, task: Trial, requests: list[Asked], long: list[Asked], with_ids: bool
    ) -> Batch:
        start = time.perf_counter()
        received = self._insert(generator, requests[: task.streams])
        rest = requests[task.streams :]
        late: dict[int, Reception] = {}
        running = set(received)
        while running:
            _, responses = generator.next()
            now = time.perf_counter()
            ended = [response.uid for response in responses if response.finish_reason is not None]
            for response in responses:
                one = received.get(response.uid) or late[response.uid]
                one.times.append(now)
                one.tokens += 1
                if with_ids:
                    one.ids.append(response.token)
            running.difference_update(ended)
            if ended and rest:
                received |= (new := self._insert(generator, rest[: len(ended)]))
                running.update(new)
                rest = rest[len(ended) :]
            if long and all(one.tokens >= SETTLED_TOKENS for one in received.values()):
                late, long = self._insert(generator, long), []
                running.update(late)
        return Batch(start, list(received.values()), list(late.values()))

    def _insert(self, generator: BatchGenerator, requests: list[Asked]) -> dict[int, Reception]:
        start = time.perf_counter()
        prompts = [self.tokenizer.encode(one.prompt) for one in requests]
        uids = generator.insert(prompts, max_tokens=[one.max_tokens for one in requests])
        return {uid: Reception(start, prompt_tokens=len(ids)) for uid, ids in zip(uids, prompts, strict=True)}


if __name__ == "__main__":
    floor = Floor(Path(sys.argv[1]))
    answer_commands({"run": floor.run})
