"""The floor: a bare loop over mlx-lm's BatchGenerator, which every figure of the server is a ratio of.

    python benchmarks/floor.py MODEL_FOLDER

Default settings, but for room for all rows of a wave at once. No detokenizing, no queue, no other thread: nothing that
serves the same tokens on this machine with this library can be much faster. Answers commands on stdin (workload.py).
"""

import sys
import time
from pathlib import Path
from typing import Any

from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model, load_tokenizer
from workload import Measurement, Reception, Trial, answer_commands

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
            waves = [self._wave(generator, task, wave, with_ids) for wave in range(task.waves)]
        finally:
            generator.close()
        return Measurement.of(waves)

    def _wave(
        self, generator: BatchGenerator, task: Trial, wave: int, with_ids: bool
    ) -> tuple[float, float, list[Reception]]:
        prompts = [self.tokenizer.encode(text) for text in task.prompts(wave)]
        start = time.perf_counter()
        uids = generator.insert(prompts, max_tokens=[task.max_tokens] * len(prompts))
        received = {uid: Reception([], 0, len(ids), []) for uid, ids in zip(uids, prompts, strict=True)}
        running, now = len(uids), start
        while running:
            _, responses = generator.next()
            now = time.perf_counter()
            for response in responses:
                one = received[response.uid]
                one.times.append(now)
                one.tokens += 1
                if with_ids:
                    one.ids.append(response.token)
                running -= response.finish_reason is not None
        return start, now, list(received.values())


if __name__ == "__main__":
    floor = Floor(Path(sys.argv[1]))
    answer_commands({"run": floor.run})
