"""Who asks for what, and how long things take: drawn from one seed, the same for every strategy.

Moments are rounded to milliseconds, so that the last bit of a platform's logarithm decides nothing.
"""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random

from inferd_server.core.model import EngineSettings, ModelEntry

GIB = 1 << 30
SIZES_GIB = (0.8, 1.8, 2.5, 4.3, 4.3, 7.9, 8.5, 13.0, 18.0, 38.0)
"""4-bit and 8-bit weights of what people run: from a 1B to a 70B model."""

MEMORY_GIB_PER_SECOND = 600.0  # every decoded token reads the weights once
READ_GIB_PER_SECOND = 5.0
WARM_UP_SECONDS = 0.5
CHECK_SECONDS = 0.005
CLOSE_SECONDS = 0.1
ABANDON_SECONDS = 0.05  # until a load has noticed that nobody wants it
PROMPT_TOKENS_PER_DECODED = 40.0  # prefill is so many times faster than decode


@dataclass(frozen=True, slots=True)
class Scenario:
    """An hour of traffic. Popularity falls as 1 / rank ** skew; arrivals are Poisson; clients leave at a deadline."""

    models: int = 200
    budget_gib: float = 256.0
    seconds: float = 3600.0
    arrivals_per_second: float = 2.0
    skew: float = 1.0
    deadline_seconds: float = 180.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a client."""

    at: float
    model: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything that is drawn: the models, and who asks for them."""

    entries: tuple[ModelEntry, ...]
    arrivals: tuple[Arrival, ...]


def draw(scenario: Scenario) -> Traffic:
    """The traffic of a scenario; equal scenarios give equal traffic."""
    random = Random(scenario.seed)
    sizes = [SIZES_GIB[i % len(SIZES_GIB)] for i in range(scenario.models)]
    random.shuffle(sizes)  # popularity says nothing about size
    entries = tuple(entry(f"model-{rank:03d}", size) for rank, size in enumerate(sizes, start=1))
    popularity = list(accumulate(rank**-scenario.skew for rank in range(1, scenario.models + 1)))
    arrivals = []
    at = random.expovariate(scenario.arrivals_per_second)
    while at < scenario.seconds:
        (model,) = random.choices(entries, cum_weights=popularity)
        arrivals.append(Arrival(round(at, 3), model.name, _tokens(random, 600, 8000), _tokens(random, 250, 2000)))
        at += random.expovariate(scenario.arrivals_per_second)
    return Traffic(entries, tuple(arrivals))


def entry(name: str, gib: float) -> ModelEntry:
    """A configured model of so many GiB."""
    return ModelEntry(name, EngineSettings(name, Path("/models") / name), estimated_bytes=int(gib * GIB))


def decode_seconds(nbytes: int) -> float:
    """One token of a model of this size; small models are bound by launches, not by memory."""
    return max(0.008, nbytes / GIB / MEMORY_GIB_PER_SECOND)


def prefill_seconds(nbytes: int, tokens: int) -> float:
    """The prompt's forward passes."""
    return tokens * decode_seconds(nbytes) / PROMPT_TOKENS_PER_DECODED


def load_seconds(nbytes: int, random: Random) -> float:
    """Reading the weights, with what else the disk does, and the warm-up."""
    return round(nbytes / GIB / READ_GIB_PER_SECOND * random.lognormvariate(0.0, 0.25) + WARM_UP_SECONDS, 3)


def _tokens(random: Random, median: int, most: int) -> int:
    """Skewed, as lengths are."""
    return max(1, min(most, round(median * random.lognormvariate(0.0, 0.8))))
