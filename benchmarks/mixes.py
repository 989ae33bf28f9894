"""Throughput against the floor for work that is not all alike; writes benchmarks/results/mixes.json.

    python benchmarks/mixes.py [--rounds 2] [--models tiny,mid,smollm2] [--streams 1,8,32] [--publish]

- mixed lengths: prompts and outputs lognormal (sigma 0.8), a new request as soon as one ends.
- shared prefix: all prompts of a trial begin alike; with the prefix cache and without.
- JSON schema: the same prompts without a constraint and with one that no output of this length can end.
- long prompts: while streams run, two long prompts arrive together; `mid` has 6 layers of 256 dimensions.

The floor (floor.py) always computes every prompt whole and knows no constraint.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import page
import report
from matplotlib.figure import Figure
from page import both, middle, ratios, spread, table, where
from processes import RESULTS
from stage import Stage, Variant, environment, model_folder, stage
from workload import Trial

CACHED, UNCACHED = "cache", "no cache"
MANAGERS = {CACHED: {}, UNCACHED: {"cache_memory_mb": 0}}
SPREAD = 0.8
SHARED_CHARACTERS = 500
SCHEMA = json.dumps(
    {
        "type": "array",
        "minItems": 100,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["fruit", "root", "leaf"]},
                "grams": {"type": "integer", "minimum": 1, "maximum": 5000},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
            },
            "required": ["name", "kind", "grams", "tags"],
            "additionalProperties": False,
        },
    }
)
HEAD = (
    "model", "mix", "streams", "server", "tok/s", "÷ floor", "(range)", "CPU ÷ floor", "TTFT p50/p99 ms", "floor",
    "gap p50/p99 ms", "floor", "prompt cached",
)  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True)
class Mix:
    """Trials of one kind and the variants that are compared."""

    name: str
    trials: list[Trial]
    variants: Mapping[str, Variant]


PLAIN = {"default": Variant(CACHED)}
CACHES = {CACHED: Variant(CACHED), UNCACHED: Variant(UNCACHED)}
CONSTRAINTS = {"free": Variant(CACHED), "JSON schema": Variant(CACHED, {"schema": SCHEMA})}


def mixes(model: str, streams: list[int]) -> list[Mix]:
    """The mixes that say something about a model; a trial takes a second or two."""
    if model == "mid":
        return [Mix("long prompts", [Trial(8, 1, 32, 128, "long", long_prompts=2, long_characters=2000)], PLAIN)]
    if model == "smollm2":
        shared = Trial(4, 1, 32, 8, "shared", shared_characters=SHARED_CHARACTERS)
        return [
            Mix("shared prefix", [shared], CACHES),
            Mix("JSON schema", [Trial(8, 1, 32, 32, "schema")], CONSTRAINTS),
        ]
    return [
        Mix("mixed lengths", [_mixed(n) for n in streams], PLAIN),
        Mix("shared prefix", [_shared(n) for n in streams], CACHES),
        Mix("JSON schema", [Trial(n, _waves(n, 2, 24), 32, 64, f"schema/{n}") for n in streams], CONSTRAINTS),
    ]


def _mixed(streams: int) -> Trial:
    return Trial(streams, _waves(streams, 2, 24), 64, 48, f"mixed/{streams}", spread=SPREAD, refill=True)


def _shared(streams: int) -> Trial:
    waves = _waves(streams, 1, 4)
    return Trial(streams, waves, 32, 32, f"shared/{streams}", refill=True, shared_characters=SHARED_CHARACTERS)


def _waves(streams: int, least: int, most: int) -> int:
    """So many that there are about 64 requests, within bounds."""
    return min(max(64 // streams, least), most)


def measure(one: Stage, model: str, chosen: list[Mix], rounds: int) -> list[Row]:
    """A row for each mix, number of streams and variant."""
    rows = []
    for mix in chosen:
        for variant in list(mix.variants.values())[1:]:  # the first one is warm from `equal`
            one.warm(mix.trials[0], variant)
        for trial in mix.trials:
            server = next(iter(mix.variants.values())).server
            equal = one.equal(trial, server)
            for name, measured in one.rounds(trial, mix.variants, rounds).items():
                facts = {"model": model, "mix": mix.name, "streams": trial.streams, "variant": name, "equal": equal}
                rows.append({**facts, "rounds": measured})
                print("  ".join(cells(rows[-1])), flush=True)
    return rows


def cells(row: Row) -> list[str]:
    """One line of the table."""
    cached = middle(row, "server", "cached_tokens") / middle(row, "server", "prompt_tokens")
    return [
        row["model"],
        row["mix"],
        str(row["streams"]),
        row["variant"],
        f"{middle(row, 'server', 'tokens_per_s'):,.0f}",
        *spread(ratios(row, "tokens_per_s")),
        f"{median(ratios(row, 'cpu_s_per_1000_tokens')):.2f}",
        both(row, "server", "ttft"),
        both(row, "floor", "ttft"),
        both(row, "server", "gap"),
        both(row, "floor", "gap"),
        f"{cached:.0%}",
    ]


def long_cells(row: Row) -> list[str]:
    """One line of the table of long prompts: what they cost the streams, and what they waited."""
    return [
        row["model"],
        str(row["streams"]),
        f"{1 / median(ratios(row, 'gap_p99_ms')):.1f}",
        f"{middle(row, 'server', 'long_ttft_ms'):.0f}",
        f"{middle(row, 'floor', 'long_ttft_ms'):.0f}",
        f"{median(ratios(row, 'long_ttft_ms')):.2f}",
    ]


def constraint_costs(rows: list[Row]) -> list[list[str]]:
    """Lines: the speed with a schema ÷ the speed without, of the same round."""
    speeds = {
        (row["model"], row["streams"], row["variant"]): [one["server"]["tokens_per_s"] for one in row["rounds"]]
        for row in rows
        if row["mix"] == "JSON schema"
    }
    return [
        [model, str(streams), *spread([a / b for a, b in zip(with_it, speeds[model, streams, "free"], strict=True)])]
        for (model, streams, variant), with_it in speeds.items()
        if variant != "free"
    ]


def text(results: Row, markdown: bool = False) -> str:
    """Everything, for people."""
    rows = results["rows"]
    parts = [table(HEAD, [cells(row) for row in rows], markdown)]
    if long := [long_cells(row) for row in rows if row["mix"] == "long prompts"]:
        head = ("model", "streams", "gap p99 × better", "last long TTFT ms", "floor", "÷ floor")
        parts.append(table(head, long, markdown))
    if costs := constraint_costs(rows):
        parts.append(table(("model", "streams", "tok/s with the schema ÷ without", "(range)"), costs, markdown))
    same = min(row["equal"] for row in rows)
    parts.append(
        f"{where(results['environment'])} Medians of {results['rounds']} interleaved rounds. "
        f"Outputs without a constraint that are the floor's, token for token: {same:.0%} in the worst case."
    )
    return "\n\n".join(parts)


def plot(results: Row) -> Figure:
    """A panel for each mix of the tiny model: tokens/s ÷ floor by streams."""
    rows = [row for row in results["rows"] if row["model"] == "tiny"] or results["rows"]
    names = list(dict.fromkeys(row["mix"] for row in rows))
    figure = Figure(figsize=(3.2 * len(names), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        of_mix = [row for row in rows if row["mix"] == name]
        for variant in dict.fromkeys(row["variant"] for row in of_mix):
            shown = [row for row in of_mix if row["variant"] == variant]
            report.line(axes, shown, lambda row: ratios(row, "tokens_per_s"), variant)
        report.frame(axes, f"{name}: tokens/s ÷ floor", sorted({row["streams"] for row in of_mix}))
        axes.legend(fontsize=8)
    return figure


def estimated_seconds(models: list[str], streams: list[int], rounds: int) -> float:
    """Of the whole run, on two idle cores."""
    trial = {"tiny": 1.3, "mid": 5.0, "smollm2": 5.0}
    pairs = sum(
        trial[model] * (2 + 2 * rounds * len(mix.variants)) * len(mix.trials)
        for model in models
        for mix in mixes(model, streams)
    )
    return 12 * len(models) + pairs


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of every case (default 2)")
    parser.add_argument("--models", default="tiny,mid,smollm2", help="which models")
    parser.add_argument("--streams", default="1,8,32", help="streams at a time, for the tiny model")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md and its plot")
    options = parser.parse_args()
    models, streams = options.models.split(","), [int(n) for n in options.streams.split(",")]
    print(f"about {estimated_seconds(models, streams, options.rounds) / 60:.1f} minutes on two idle cores", flush=True)
    began = time.monotonic()
    RESULTS.mkdir(parents=True, exist_ok=True)
    results: Row = {"environment": environment(), "rounds": options.rounds, "rows": []}
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            chosen = mixes(model, streams)
            needed = {variant.server for mix in chosen for variant in mix.variants.values()}
            managers = {name: manager for name, manager in MANAGERS.items() if name in needed}
            with stage(model, model_folder(model, Path(scratch)), managers) as one:
                results["rows"] += measure(one, model, chosen, options.rounds)
    (RESULTS / "mixes.json").write_text(json.dumps(results, indent=1))
    print(text(results))
    print(f"took {time.monotonic() - began:.0f} s")
    if options.publish:
        page.publish("mixes", text(results, markdown=True), plot(results), "Mixes against the floor, by streams")


if __name__ == "__main__":
    main()
