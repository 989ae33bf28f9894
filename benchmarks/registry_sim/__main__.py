"""Simulates the strategies and measures the planner.

    make sim [ARGS="strategies|costs [--publish] [--seconds 3600]"]

Without a word both are printed; `--publish` writes docs/registry.md and its plot.
"""

import argparse
import platform

from .planner_cost import CLIENTS, SIZES, measure
from .report import cost_cells, cost_table, plot, publish, strategy_table
from .strategies import compare
from .traffic import Scenario


def show_strategies(seconds: float, *, published: bool) -> None:
    """The table of strategies; with the plot if published."""
    outcomes = []
    for outcome in compare(Scenario(seconds=seconds)):
        outcomes.append(outcome)
        print(f"{outcome.strategy}: {outcome.events:,} events in {outcome.cpu_seconds:.1f} s of CPU", flush=True)
    print(strategy_table(outcomes))
    if published:
        publish("strategies", strategy_table(outcomes))
        plot(outcomes)


def show_costs(*, published: bool) -> None:
    """The table of costs."""
    costs = []
    for models in SIZES:
        for clients in CLIENTS:
            costs.append(measure(models, clients))
            print("  ".join(cost_cells(costs[-1])), flush=True)
    print(cost_table(costs))
    if published:
        publish("costs", f"{cost_table(costs)}\n\n{platform.machine()}, Python {platform.python_version()}.")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="registry_sim", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["strategies", "costs", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=3600.0, help="virtual time of the strategies")
    parser.add_argument("--publish", action="store_true", help="write docs/registry.md")
    asked = parser.parse_args()
    if asked.what != "costs":
        show_strategies(asked.seconds, published=asked.publish)
    if asked.what != "strategies":
        show_costs(published=asked.publish)


if __name__ == "__main__":
    main()
