"""Budget against ceiling: what `serve` logs at its start and `check` prints (docs/semantics.md §1). Pure.

The budget counts weights. KV cache, prefix cache and activations come out of the device's allocation ceiling, which is
process-wide: the lowest gpu_memory_utilization of the batching entries x the device's recommended working set.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from .config import Config
from .entry import is_batching, memory_share
from .rules import gib

RESERVE_NBYTES = 128 * 2**20
"""Never promised to requests: the interpreter, tokenizers, and buffers that MLX keeps for reuse."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """What the report is made from.

    Attributes:
        budget_nbytes: weights, all resident models together.
        working_set_nbytes: what the device recommends to use at most; 0 where it reports none.
        lowest_share: lowest effective gpu_memory_utilization of the batching entries; None where no entry batches.
        lowest_share_model: whose that is.
        cache_nbytes: limit of the prefix cache, per model.
        cache_entries: number of entries that the limit binds for.
    """

    budget_nbytes: int
    working_set_nbytes: int
    lowest_share: float | None
    lowest_share_model: str
    cache_nbytes: int
    cache_entries: int

    @property
    def ceiling_nbytes(self) -> int:
        """The allocation ceiling; 0 where nothing installs one."""
        return int((self.lowest_share or 0) * self.working_set_nbytes)


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """Lines for people: what holds, and what conflicts."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...]

    def log(self, log: logging.Logger) -> None:
        """Log each line by itself."""
        for line in self.lines:
            log.info(line)
        for line in self.warnings:
            log.warning(line)


def memory_figures(config: Config, working_set_nbytes: int) -> MemoryFigures:
    """The figures of a configuration on a device with this recommended working set (0: none reported)."""
    shares = [
        (memory_share(model, config.server), model.name) for model in config.models if is_batching(model, config.server)
    ]
    share, name = min(shares, default=(None, ""))
    return MemoryFigures(
        budget_nbytes=config.budget_nbytes,
        working_set_nbytes=working_set_nbytes,
        lowest_share=share,
        lowest_share_model=name,
        cache_nbytes=config.manager.cache_memory_mb * 2**20,
        cache_entries=sum(entry.engine.prefix_cache_nbytes > 0 for entry in config.entries),  # embedders have none
    )


def work_limit_nbytes(config: Config, working_set_nbytes: int, machine_nbytes: int) -> int:
    """Bytes for everything but weights, all models together: caches, prefix caches, prefill and sampling.

    The lowest gpu_memory_utilization of all entries x the recommended working set (without one: the machine's memory
    or its container's limit), less the most weights that can be resident together and a fixed reserve. So it holds
    whichever models are loaded, and no load has to ask the running requests. At least 0: with a budget that fills
    the memory (the report warns) no request fits.
    """
    share = min(memory_share(model, config.server) for model in config.models)
    weights = largest_resident_set([entry.estimated_bytes for entry in config.entries], config.budget_nbytes)
    return max(0, int(share * (working_set_nbytes or machine_nbytes)) - weights - RESERVE_NBYTES)


def largest_resident_set(sizes: Sequence[int], budget_nbytes: int) -> int:
    """Most bytes that models of these sizes take together within the budget; may be too large by a millionth of the
    budget for each model.

    The subset sums are the bits of one number: bit n says that some set takes n units.
    """
    if sum(sizes) <= budget_nbytes:
        return sum(sizes)
    unit = max(1, budget_nbytes >> 20)
    units = budget_nbytes // unit
    sums = 1
    for size in sizes:  # sizes are rounded down, so that no set that fits is missed
        if size <= budget_nbytes:
            sums |= (sums << size // unit) & ((1 << (units + 1)) - 1)
    return min(budget_nbytes, (sums.bit_length() - 1 + len(sizes)) * unit)


def budget_report(config: Config, working_set_nbytes: int) -> BudgetReport:
    """The report of a configuration on a device with this recommended working set (0: none reported)."""
    return report(memory_figures(config, working_set_nbytes))


def report(figures: MemoryFigures) -> BudgetReport:
    """The report on some figures."""
    budget = f"budget: {gib(figures.budget_nbytes)} of weights, all resident models together"
    return BudgetReport((budget, _ceiling_line(figures), _cache_line(figures)), tuple(_conflicts(figures)))


def _ceiling_line(figures: MemoryFigures) -> str:
    if figures.lowest_share is None:
        return "allocation ceiling: none, because no entry batches"
    if not figures.working_set_nbytes:
        return "allocation ceiling: none, because the device reports no recommended working set"
    return (
        f"allocation ceiling: {gib(figures.ceiling_nbytes)} = {figures.lowest_share:g} (gpu_memory_utilization of "
        f"{figures.lowest_share_model}, the lowest) x {gib(figures.working_set_nbytes)} recommended working set"
    )


def _cache_line(figures: MemoryFigures) -> str:
    if figures.cache_nbytes and not figures.cache_entries:
        return "prefix cache: none, because embedders and rerankers keep nothing"
    if not figures.cache_entries:
        return "prefix cache: none, because cache_memory_mb is 0"
    entries = "1 entry" if figures.cache_entries == 1 else f"{figures.cache_entries} entries"
    return f"prefix-cache limit: {gib(figures.cache_nbytes)} per model, binding for {entries}"


def _conflicts(figures: MemoryFigures) -> list[str]:
    ceiling = figures.ceiling_nbytes
    found = []
    if ceiling and figures.budget_nbytes > ceiling:
        found.append(
            f"the budget ({gib(figures.budget_nbytes)}) is above the allocation ceiling ({gib(ceiling)}): models may "
            "load that leave no room to run; lower memory_budget_gb or raise gpu_memory_utilization"
        )
    if ceiling and figures.cache_entries and figures.cache_nbytes >= ceiling:
        found.append(
            f"the prefix-cache limit ({gib(figures.cache_nbytes)}) alone reaches the allocation ceiling "
            f"({gib(ceiling)}); lower cache_memory_mb"
        )
    return found
