"""What sampling adds to a decode step: ours, vectorised over the rows, and mlx-lm's samplers row by row.

    python benchmarks/sampler_cost.py [--rows 16] [--vocabulary 49152] [--steps 30]

Random logits stand for the model's; a step is everything between them and the token ids, read back. Figures are medians
in milliseconds; cases take turns, so that all meet the same machine.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from inferd_server.core.generation import DecodeRequest, Sampling
from inferd_server.engine.row import Row
from inferd_server.engine.sampling import Sampler
from inferd_server.engine.shaping import Shaping, is_shaped

PROMPT_TOKENS = 500
POSITION = 100
GREEDY = Sampling(temperature=0.0)
TEMPERATURE = Sampling(temperature=0.8)
TOP_P = Sampling(temperature=0.8, top_p=0.9)
TOP_K = Sampling(temperature=0.8, top_k=40)
MIN_P = Sampling(temperature=0.8, min_p=0.05)
ALL_FILTERS = Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.05)
REPETITION = Sampling(temperature=0.0, repetition_penalty=1.2)
PRESENCE = Sampling(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.2)
BIAS = Sampling(temperature=0.0, logit_bias={7: 2.0, 11: -3.0})
EVERYTHING = Sampling(
    0.8, 0.9, 40, 0.05, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={7: 2.0}
)
CASES = {
    "greedy": [GREEDY],
    "temperature": [TEMPERATURE],
    "top_p": [TOP_P],
    "top_k": [TOP_K],
    "min_p": [MIN_P],
    "top_p, min_p, top_k": [ALL_FILTERS],
    "repetition penalty": [REPETITION],
    "presence, frequency": [PRESENCE],
    "logit bias": [BIAS],
    "everything": [EVERYTHING],
    "mixed: 5 kinds": [GREEDY, TEMPERATURE, TOP_P, TOP_K, MIN_P],
    "mixed: 10 kinds": [
        *(GREEDY, TEMPERATURE, TOP_P, TOP_K, MIN_P),
        *(ALL_FILTERS, REPETITION, PRESENCE, BIAS, EVERYTHING),
    ],
}

Step = Callable[[Any], Any]


def ours(samplings: list[Sampling], vocabulary_size: int) -> Step:
    """What the engine does in a step, on rows in the middle of their output."""
    import mlx.core as mx  # noqa: PLC0415 - behind the engine, which brings its BLAS

    source = random.Random(0)
    rows = []
    for number, sampling in enumerate(samplings):
        prompt = tuple(source.randrange(vocabulary_size) for _ in range(PROMPT_TOKENS))
        emitted = tuple(source.randrange(vocabulary_size) for _ in range(POSITION))
        row = Row(number, DecodeRequest(prompt, sampling, 1000, emitted_ids=emitted))
        row.join(0)
        rows.append(row)
    sampler = Sampler([(row.request.sampling, row.position(0)) for row in rows])
    shaping = Shaping(rows, 0, vocabulary_size) if any(map(is_shaped, samplings)) else None
    inputs = mx.array([row.context[-1] for row in rows])

    def step(logits: Any) -> Any:
        nonlocal inputs
        inputs = sampler(shaping(logits, inputs) if shaping else logits)
        return inputs

    return step


def theirs(samplings: list[Sampling], vocabulary_size: int) -> Step:
    """mlx-lm's: a sampler and its logits processors for each row, as BatchGenerator calls them."""
    import mlx.core as mx  # noqa: PLC0415 - behind the engine, which brings its BLAS
    from mlx_lm.sample_utils import make_logits_processors, make_sampler  # noqa: PLC0415 - likewise

    del vocabulary_size
    samplers = [make_sampler(s.temperature, s.top_p, s.min_p, top_k=s.top_k) for s in samplings]
    processors = [
        make_logits_processors(
            s.logit_bias or None,
            s.repetition_penalty if s.repetition_penalty != 1 else None,
            s.repetition_window,
            s.presence_penalty or None,
            PROMPT_TOKENS + POSITION,
            s.frequency_penalty or None,
            PROMPT_TOKENS + POSITION,
        )
        for s in samplings
    ]
    history = mx.arange(PROMPT_TOKENS + POSITION)

    def step(logits: Any) -> Any:
        tokens = []
        for number, (sampler, own) in enumerate(zip(samplers, processors, strict=True)):
            row = logits[number : number + 1]
            for processor in own:
                row = processor(history, row)
            tokens.append(sampler(row - mx.logsumexp(row, axis=-1, keepdims=True)))
        return mx.concatenate(tokens)

    return step


def main() -> None:
    """Measure every case in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 16), ("vocabulary", 49152), ("steps", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    import mlx.core as mx  # noqa: PLC0415 - behind the engine, which brings its BLAS

    logits = mx.random.normal((options.rows, options.vocabulary)) * 3
    mx.eval(logits)
    steps: dict[tuple[str, str], Step] = {}
    for case, kinds in CASES.items():
        samplings = [kinds[number % len(kinds)] for number in range(options.rows)]
        for name, make in (("ours", ours), ("mlx-lm", theirs)):
            steps[case, name] = make(samplings, options.vocabulary)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    for turn in range(options.steps + 1):
        for key, step in steps.items():
            began = time.perf_counter()
            step(logits).tolist()
            if turn:
                seconds[key].append(time.perf_counter() - began)
    medians = {key: 1e3 * statistics.median(each) for key, each in seconds.items()}
    floor = medians["greedy", "ours"]
    print(f"{options.rows} rows, vocabulary {options.vocabulary}: ms a step (more than greedy); mlx-lm row by row")
    for case in CASES:
        mine, other = medians[case, "ours"], medians[case, "mlx-lm"]
        print(f"{case:20} {mine:7.2f}  ({mine - floor:+7.2f})   mlx-lm {other:7.2f}   {other / mine:5.1f} x")


if __name__ == "__main__":
    main()
