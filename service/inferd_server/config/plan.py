"""The memory plan that `inferd check` prints: sizes, what preloads, what cannot be resident together. Pure."""

from collections.abc import Iterator
from itertools import combinations

from inferd_server.core.model import ModelEntry

from .budget import budget_report
from .config import Config
from .rules import gib

MAX_LISTED_PAIRS = 16
MAX_PAIRED_MODELS = 256


def plan_lines(config: Config, working_set_nbytes: int) -> Iterator[str]:
    """The plan on a device with this recommended working set (0: none reported)."""
    report = budget_report(config, working_set_nbytes)
    yield from report.lines
    yield ""
    yield from _table(config)
    yield ""
    yield from _residents(config)
    yield from _togetherness(config)
    for warning in (*report.warnings, *config.warnings):
        yield f"warning: {warning}"
    for name, damage in config.damage.items():
        for line in damage[:8]:
            yield f"warning: {name} will not load as it is: {line}"


def _table(config: Config) -> Iterator[str]:
    rows = [("model", "weights", "size", "at start", "aliases")]
    for model, entry in zip(config.models, config.entries, strict=True):
        origin = "files" if model.estimated_memory_gb is None else "stated"
        start = " ".join(word for word in ("preload", "pinned") if getattr(entry, word)) or "-"
        rows.append((entry.name, gib(entry.estimated_bytes), origin, start, ", ".join(entry.aliases) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _residents(config: Config) -> Iterator[str]:
    preloads = [entry for entry in config.entries if entry.preload]
    total = sum(entry.estimated_bytes for entry in preloads)
    if preloads:
        names = ", ".join(entry.name for entry in preloads)
        yield f"preloads: {names}: {gib(total)} of {gib(config.budget_nbytes)}"
    else:
        yield "preloads: none; each model loads at its first request"


def _togetherness(config: Config) -> Iterator[str]:
    budget = config.budget_nbytes
    total = sum(entry.estimated_bytes for entry in config.entries)
    if total <= budget:
        yield f"all models fit together: {gib(total)} of {gib(budget)}"
        return
    yield f"all models together need {gib(total)}, {gib(total - budget)} more than the budget"
    yield from _pairs(config.entries, budget)
    yield from _behind_pins(config.entries, budget)


def _pairs(entries: tuple[ModelEntry, ...], budget: int) -> Iterator[str]:
    largest = sorted(entries, key=lambda entry: -entry.estimated_bytes)[:MAX_PAIRED_MODELS]
    pairs = [(a, b) for a, b in combinations(largest, 2) if a.estimated_bytes + b.estimated_bytes > budget]
    for a, b in pairs[:MAX_LISTED_PAIRS]:
        yield f"never together: {a.name} + {b.name} ({gib(a.estimated_bytes + b.estimated_bytes)})"
    if len(pairs) > MAX_LISTED_PAIRS:
        yield f"never together: {len(pairs) - MAX_LISTED_PAIRS} more pairs"


def _behind_pins(entries: tuple[ModelEntry, ...], budget: int) -> Iterator[str]:
    """Models that cannot load while everything pinned is resident."""
    room = budget - sum(entry.estimated_bytes for entry in entries if entry.pinned)
    shut_out = [entry.name for entry in entries if not entry.pinned and entry.estimated_bytes > room]
    if shut_out and any(entry.pinned for entry in entries):
        names = ", ".join(shut_out[:MAX_LISTED_PAIRS])
        more = f" and {len(shut_out) - MAX_LISTED_PAIRS} more" if len(shut_out) > MAX_LISTED_PAIRS else ""
        yield f"warning: no room for {names}{more} while the pinned models are resident"
