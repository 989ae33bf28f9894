"""Turns benchmarks/results/results.json into a table, a plot and docs/performance.md.

python benchmarks/report.py [--publish]
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

BEGIN, END = "<!-- figures: written by make bench ARGS=--publish -->", "<!-- end of figures -->"
Row = dict[str, Any]
HEAD = (
    "model", "deltas", "streams", "tok/s", "÷ floor", "(range)", "CPU s/1k tok", "÷ floor", "TTFT p50/p99 ms",
    "floor", "gap p50/p99 ms", "floor", "tok/delta", "same tokens",
)  # fmt: skip


def ratios(row: Row, figure: str) -> list[float]:
    """Server ÷ floor, one a round."""
    return [one["server"][figure] / one["floor"][figure] for one in row["rounds"]]


def middle(row: Row, side: str, figure: str) -> float:
    """The median over the rounds."""
    return median(one[side][figure] for one in row["rounds"])


def cells(model: str, row: Row) -> list[str]:
    """One line of the table."""
    speed, cpu = ratios(row, "tokens_per_s"), ratios(row, "cpu_s_per_1000_tokens")

    def pair(side: str, name: str) -> str:
        return f"{middle(row, side, name + '_p50_ms'):.1f} / {middle(row, side, name + '_p99_ms'):.1f}"

    return [
        model,
        row["variant"],
        str(row["streams"]),
        f"{middle(row, 'server', 'tokens_per_s'):,.0f}",
        f"{median(speed):.2f}",
        f"{min(speed):.2f}–{max(speed):.2f}",
        f"{middle(row, 'server', 'cpu_s_per_1000_tokens'):.3f}",
        f"{median(cpu):.2f}",
        pair("server", "ttft"),
        pair("floor", "ttft"),
        pair("server", "gap"),
        pair("floor", "gap"),
        f"{middle(row, 'server', 'tokens_per_delivery'):.1f}",
        f"{row['equal']:.0%}",
    ]


def late_cells(model: str, row: Row) -> list[str]:
    """One line of the table of late arrivals."""
    added = [one["beside_p50_ms"] - one["idle_p50_ms"] for one in row["rounds"]]
    idle, beside = (median(one[f"{name}_p50_ms"] for one in row["rounds"]) for name in ("idle", "beside"))
    return [model, row["variant"], f"{idle:.1f}", f"{beside:.1f}", f"{median(added):+.1f}"]


def table(head: Iterable[str], lines: list[list[str]], markdown: bool = False) -> str:
    """Aligned columns; with bars and a rule for Markdown."""
    rows = [list(head), *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    texts = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    if not markdown:
        return "\n".join("  ".join(row).rstrip() for row in texts)
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(row)} |" for row in [texts[0], rule, *texts[1:]])


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
    where = results["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    parts.append(
        f"{where['machine']}; Python {where['python']}; {versions}; BLAS {where['blas']}; commit {where['commit']}; "
        f"{where['time']}; load average before the run {where['load_before']:.1f}. "
        f"Medians of {results['pairs']} interleaved rounds."
    )
    return "\n\n".join(parts)


def plot(results: Row, file: Path) -> None:
    """Two panels: tokens/s and CPU seconds per token, both as ratios to the floor."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    speed, cpu = figure.subplots(1, 2)
    for one in results["models"]:
        for name in dict.fromkeys(row["variant"] for row in one["rows"]):
            rows = [row for row in one["rows"] if row["variant"] == name]
            label = f"{one['model']}, {name}"
            _line(speed, rows, lambda row: ratios(row, "tokens_per_s"), label)
            _line(cpu, rows, lambda row: ratios(row, "cpu_s_per_1000_tokens"), label)
    for axes, title in ((speed, "tokens/s ÷ floor"), (cpu, "server CPU per token ÷ floor")):
        axes.set(title=title, xlabel="streams", xscale="log", ylim=(0, None))
        axes.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
        axes.minorticks_off()
        axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
        axes.grid(alpha=0.3)
    cpu.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def _line(axes: Any, rows: list[Row], values: Callable[[Row], list[float]], label: str) -> None:
    streams = [row["streams"] for row in rows]
    each = [values(row) for row in rows]
    middles = [median(one) for one in each]
    spread = [
        [m - min(one) for m, one in zip(middles, each, strict=True)],
        [max(one) - m for m, one in zip(middles, each, strict=True)],
    ]
    axes.errorbar(streams, middles, yerr=spread, marker="o", markersize=4, capsize=2, linewidth=1.2, label=label)


def publish(results: Row, docs: Path) -> None:
    """Put figures and plot into docs/performance.md, between its two marks."""
    page = docs / "performance.md"
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    figures = f"![Server against floor, by streams](performance.svg)\n\n{text(results, markdown=True)}"
    page.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}")
    plot(results, docs / "performance.svg")


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    stored = json.loads((folder / "results" / "results.json").read_text())
    print(text(stored))
    if "--publish" in sys.argv:
        publish(stored, folder.parent / "docs")
