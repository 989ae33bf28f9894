"""What a soak says about a server that runs for a year: does it grow, does it slow down?"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure
from workload import quantile

Points = Sequence[tuple[float, float]]
"""(seconds, value)"""


@dataclass(frozen=True)
class Slope:
    """A line through points: how much a value grows in an hour, how much on the line over the whole time, and how
    uncertain the former is (one standard error)."""

    per_hour: float
    in_all: float
    error_per_hour: float

    @classmethod
    def of(cls, points: Points) -> "Slope":
        """By least squares; of fewer than three points there is none."""
        if len(points) < 3:
            return cls(0.0, 0.0, 0.0)
        times, values = zip(*points, strict=True)
        middle, mean = sum(times) / len(times), sum(values) / len(values)
        spread = sum((t - middle) ** 2 for t in times)
        slope = sum((t - middle) * (v - mean) for t, v in points) / spread
        rest = sum((v - mean - slope * (t - middle)) ** 2 for t, v in points)
        error = (rest / (len(points) - 2) / spread) ** 0.5
        return cls(3600 * slope, slope * (times[-1] - times[0]), 3600 * error)


@dataclass(frozen=True)
class Drift:
    """A time in its first and in its last third of a run, milliseconds."""

    count: int
    p50: tuple[float, float]
    p95: tuple[float, float]

    @classmethod
    def of(cls, points: Points, begin: float, end: float) -> "Drift":
        """Of (when, seconds); what came before `begin` is warm-up."""
        third = (end - begin) / 3
        first = [1e3 * value for when, value in points if begin <= when < begin + third]
        last = [1e3 * value for when, value in points if end - third <= when <= end]
        return cls(
            len(first) + len(last),
            (quantile(first, 0.5), quantile(last, 0.5)),
            (quantile(first, 0.95), quantile(last, 0.95)),
        )

    def is_slower(self, factor: float, slack_ms: float) -> bool:
        """Whether the last third is slower than the first by more than that, at the median."""
        return self.p50[1] > factor * self.p50[0] + slack_ms


def plot(resident_mib: Points, first_tokens: Points, begin: float, end: float) -> Figure:
    """Memory, and the time to the first token in windows of a sixtieth, over the minutes."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    memory, times = figure.subplots(2, 1, sharex=True)
    memory.plot([(t - begin) / 60 for t, _ in resident_mib], [v for _, v in resident_mib], linewidth=1)
    memory.set_ylabel("resident MiB")
    memory.set_ylim(bottom=0)
    window = (end - begin) / 60
    windows = [[v for t, v in first_tokens if begin + i * window <= t < begin + (i + 1) * window] for i in range(60)]
    middles = [(i + 0.5) * window / 60 for i in range(60)]
    times.plot(middles, [1e3 * median(one) if one else float("nan") for one in windows], linewidth=1)
    times.set_ylabel("first token, ms (median)")
    times.set_ylim(bottom=0)
    times.set_xlabel("minutes")
    return figure
