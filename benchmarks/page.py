"""Tables, and what a benchmark writes between its two marks of docs/performance.md."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from processes import ROOT

DOCS = ROOT / "docs"
BEGIN, END = "<!-- {}: written by make {} -->", "<!-- end of {} -->"
WORDS = {
    "throughput": "bench ARGS='--publish'",
    "mixes": "bench ARGS='--mixes --publish'",
    "trace": "bench ARGS='--trace --publish'",
    "soak": "soak ARGS='--publish'",
}


def table(head: Iterable[str], lines: list[list[str]], markdown: bool = False) -> str:
    """Aligned columns; with bars and a rule for Markdown."""
    rows = [list(head), *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    texts = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    if not markdown:
        return "\n".join("  ".join(row).rstrip() for row in texts)
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(row)} |" for row in [texts[0], rule, *texts[1:]])


def where(environment: dict[str, Any]) -> str:
    """What the figures depend on, in a sentence."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    return (
        f"{environment['machine']}; Python {environment['python']}; {versions}; BLAS {environment['blas']}; "
        f"commit {environment['commit']}; {environment['time']}; "
        f"load average before the run {environment['load_before']:.1f}."
    )


def ratios(row: dict[str, Any], figure: str) -> list[float]:
    """Server ÷ floor, one a round."""
    return [one["server"][figure] / one["floor"][figure] for one in row["rounds"]]


def middle(row: dict[str, Any], side: str, figure: str) -> float:
    """The median over the rounds."""
    return median(one[side][figure] for one in row["rounds"])


def spread(values: list[float]) -> list[str]:
    """Two cells: the median, and the lowest and the highest."""
    return [f"{median(values):.2f}", f"{min(values):.2f}–{max(values):.2f}"]


def both(row: dict[str, Any], side: str, name: str) -> str:
    """Median and 99th percentile of a time, milliseconds."""
    return f"{middle(row, side, name + '_p50_ms'):.1f} / {middle(row, side, name + '_p99_ms'):.1f}"


def publish(section: str, body: str, figure: Figure, alternative: str) -> None:
    """Put text and plot into a section of docs/performance.md; raises ValueError if its marks are gone."""
    page = DOCS / "performance.md"
    begin = BEGIN.format(section, WORDS[section])
    before, rest = page.read_text().split(begin)
    _, after = rest.split(END.format(section))
    file = Path("plots") / f"{section}.svg"
    page.write_text(f"{before}{begin}\n\n![{alternative}]({file})\n\n{body}\n\n{END.format(section)}{after}")
    figure.savefig(DOCS / file, metadata={"Date": None})
