"""Figures as tables and a plot; with `--publish` also into docs/registry.md."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .planner_cost import Cost
from .strategies import Outcome

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "registry.md"
PLOT = ROOT / "docs" / "plots" / "registry_sim.svg"

STRATEGY_HEAD = (
    "strategy", "at once", "served", "refused", "left", "wait p50 / p99 / max s", "loads", "swaps", "drains",
    "preemptions", "interrupted", "paused p99 s", "work lost s",
)  # fmt: skip
COST_HEAD = ("models", "clients", "waiting", "of models", "running", "events/s", "mean µs", "p50", "p99", "max", "(by)")


def strategy_cells(outcome: Outcome) -> list[str]:
    """One line of the table of strategies."""
    return [
        outcome.strategy,
        f"{outcome.hit_share:.1%}",
        f"{outcome.served_share:.1%}",
        f"{outcome.refused_share:.1%}",
        f"{outcome.left_share:.1%}",
        f"{outcome.wait_p50:.1f} / {outcome.wait_p99:.1f} / {outcome.wait_max:.1f}",
        f"{outcome.loads:,}",
        f"{outcome.swaps:,}",
        f"{outcome.drains:,}",
        f"{outcome.preemptions:,}",
        f"{outcome.interrupted:,}",
        f"{outcome.paused_p99:.1f}",
        f"{outcome.lost_seconds:,.0f} ({outcome.lost_share:.1%})",
    ]


def cost_cells(cost: Cost) -> list[str]:
    """One line of the table of costs."""
    return [
        f"{cost.models:,}",
        f"{cost.clients:,}",
        f"{cost.tickets:,}",
        f"{cost.groups:,}",
        f"{cost.leases:,}",
        f"{cost.decisions_per_second:,.0f}",
        f"{cost.mean_us:,.0f}",
        f"{cost.p50_us:,.0f}",
        f"{cost.p99_us:,.0f}",
        f"{cost.max_us:,.0f}",
        cost.dearest,
    ]


def table(head: Iterable[str], lines: Iterable[list[str]]) -> str:
    """Markdown that reads well as plain text too; the first column to the left, figures to the right."""
    rows = [list(head), *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    texts = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    for row, text in zip(rows, texts, strict=True):
        text[0] = row[0].ljust(widths[0])
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [texts[0], rule, *texts[1:]])


def strategy_table(outcomes: Sequence[Outcome]) -> str:
    """What became of the traffic, a line for each strategy."""
    return table(STRATEGY_HEAD, map(strategy_cells, outcomes))


def cost_table(costs: Sequence[Cost]) -> str:
    """How the planner's cost grows."""
    return table(COST_HEAD, map(cost_cells, costs))


def publish(name: str, text: str, page: Path = PAGE) -> None:
    """Put text between the marks of its name on the page."""
    begin, end = f"<!-- {name}: written by make sim ARGS=--publish -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    old = page.read_text()
    assert len(pattern.findall(old)) == 1, f"{page} has no place for {name}"
    page.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", old))


def plot(outcomes: Sequence[Outcome], path: Path = PLOT) -> None:
    """Who has begun after how long, and how requests ended; the same bytes for the same figures."""
    mpl.rcParams["svg.hashsalt"] = "registry_sim"
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    begun, ends = figure.subplots(1, 2, width_ratios=[3, 2])
    _plot_begun(begun, outcomes)
    _plot_ends(ends, outcomes)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _plot_begun(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        shares = [(place + 1) / outcome.requests for place in range(len(outcome.waits))]
        step = max(1, len(shares) // 400)
        axes.plot([max(wait, 0.1) for wait in outcome.waits[::step]], shares[::step], label=outcome.strategy)
    axes.set(xscale="log", xlim=(0.1, 200), ylim=(0, 1), xlabel="seconds since the request", title="Requests begun")
    axes.grid(alpha=0.3)
    axes.legend()


def _plot_ends(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    names = [outcome.strategy.replace("_", "\n") for outcome in outcomes]
    at_once = [outcome.hit_share for outcome in outcomes]
    begun = [len(outcome.waits) / outcome.requests for outcome in outcomes]
    ended = [share + outcome.refused_share for share, outcome in zip(begun, outcomes, strict=True)]
    levels = [[0.0] * len(names), at_once, begun, ended, [1.0] * len(names)]
    labels = ("at once", "after a wait", "refused", "left while it waited")
    colours = ("tab:green", "tab:blue", "tab:red", "tab:gray")
    for label, colour, low, high in zip(labels, colours, levels, levels[1:], strict=False):
        heights = [max(0.0, top - bottom) for bottom, top in zip(low, high, strict=True)]
        axes.bar(names, heights, bottom=low, label=label, color=colour)
    axes.set(ylim=(0, 1), title="How they were answered")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
