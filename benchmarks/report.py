"""Turns benchmarks/results/results.json into a table, a plot and docs/performance.md.

python benchmarks/report.py [--publish]
"""

import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import page
from matplotlib.figure import Figure
from page import both, middle, ratios, spread, table, where
from processes import RESULTS

Row = dict[str, Any]
HEAD = (
    "model", "deltas", "streams", "tok/s", "÷ floor", "(range)", "CPU s/1k tok", "÷ floor", "TTFT p50/p99 ms",
    "floor", "gap p50/p99 ms", "floor", "tok/delta", "same tokens",
)  # fmt: skip


def cells(model: str, row: Row) -> list[str]:
    """One line of the table."""
    return [
        model,
        row["variant"],
        str(row["streams"]),
        f"{middle(row, 'server', 'tokens_per_s'):,.0f}",
        *spread(ratios(row, "tokens_per_s")),
        f"{middle(row, 'server', 'cpu_s_per_1000_tokens'):.3f}",
        f"{median(ratios(row, 'cpu_s_per_1000_tokens')):.2f}",
        both(row, "server", "ttft"),
        both(row, "floor", "ttft"),
        both(row, "server", "gap"),
        both(row, "floor", "gap"),
        f"{middle(row, 'server', 'tokens_per_delivery'):.1f}",
        f"{row['equal']:.0%}",
    ]


def late_cells(model: str, row: Row) -> list[str]:
    """One line of the table of late arrivals."""
    added = [one["beside_p50_ms"] - one["idle_p50_ms"] for one in row["rounds"]]
    idle, beside = (median(one[f"{name}_p50_ms"] for one in row["rounds"]) for name in ("idle", "beside"))
    return [model, row["variant"], f"{idle:.1f}", f"{beside:.1f}", f"{median(added):+.1f}"]


def progress(model: str, rows: list[Row]) -> str:
    """The lines of one finished case."""
    return "\n".join("  ".join(cells(model, row)) for row in rows)


def text(results: Row, markdown: bool = False) -> str:
    """Everything, for people."""
    models = results["models"]
    parts = [table(HEAD, [cells(one["model"], row) for one in models for row in one["rows"]], markdown)]
    if late := [late_cells(one["model"], row) for one in models for row in one["late"]]:
        head = ("model", "deltas", "TTFT p50 idle ms", "beside 4 streams ms", "added ms")
        parts.append(table(head, late, markdown))
    memory = [
        [one["model"], f"{one['memory']['server_mib']:.0f}", f"{one['memory']['floor_mib']:.0f}"] for one in models
    ]
    parts.append(table(("model", "server peak MiB", "floor peak MiB"), memory, markdown))
    parts.append(f"{where(results['environment'])} Medians of {results['pairs']} interleaved rounds.")
    return "\n\n".join(parts)


def plot(results: Row) -> Figure:
    """Two panels: tokens/s and CPU seconds per token, both as ratios to the floor."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    speed, cpu = figure.subplots(1, 2)
    for one in results["models"]:
        for name in dict.fromkeys(row["variant"] for row in one["rows"]):
            rows = [row for row in one["rows"] if row["variant"] == name]
            label = f"{one['model']}, {name}"
            line(speed, rows, lambda row: ratios(row, "tokens_per_s"), label)
            line(cpu, rows, lambda row: ratios(row, "cpu_s_per_1000_tokens"), label)
    streams = sorted({row["streams"] for one in results["models"] for row in one["rows"]})
    for axes, title in ((speed, "tokens/s ÷ floor"), (cpu, "server CPU per token ÷ floor")):
        frame(axes, title, streams)
    cpu.legend(fontsize=8)
    return figure


def frame(axes: Any, title: str, streams: list[int]) -> None:
    """A panel of ratios by streams, with a line at 1."""
    axes.set(title=title, xlabel="streams", xscale="log", ylim=(0, None))
    axes.set_xticks(streams, [str(n) for n in streams])
    axes.minorticks_off()
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.grid(alpha=0.3)


def line(axes: Any, rows: list[Row], values: Callable[[Row], list[float]], label: str) -> None:
    """Medians over the rounds by streams, with bars from the lowest to the highest."""
    streams = [row["streams"] for row in rows]
    each = [values(row) for row in rows]
    middles = [median(one) for one in each]
    bars = [
        [m - min(one) for m, one in zip(middles, each, strict=True)],
        [max(one) - m for m, one in zip(middles, each, strict=True)],
    ]
    axes.errorbar(streams, middles, yerr=bars, marker="o", markersize=4, capsize=2, linewidth=1.2, label=label)


def publish(results: Row) -> None:
    """Put figures and plot into docs/performance.md."""
    page.publish("throughput", text(results, markdown=True), plot(results), "Server against floor, by streams")


if __name__ == "__main__":
    stored = json.loads((RESULTS / "results.json").read_text())
    print(text(stored))
    if "--publish" in sys.argv:
        publish(stored)
