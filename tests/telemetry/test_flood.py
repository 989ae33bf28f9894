"""A flood of one kind of warning."""

import logging

from inferd_server.telemetry.flood import MAX_KINDS, MOST_PER_WINDOW, WINDOW_SECONDS, FloodGate


class Watched:
    """A logger behind a gate, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[logging.LogRecord] = []
        self.log = logging.Logger("flooded")
        handler = logging.Handler()
        handler.emit = self.told.append  # type: ignore[method-assign]
        handler.addFilter(FloodGate(lambda: self.now))
        self.log.addHandler(handler)


def test_so_many_of_a_kind_are_told_in_a_window_and_the_next_one_counts_the_others() -> None:
    watched = Watched()
    for number in range(1000):
        watched.log.error("step %d failed", number)
    watched.log.error("another kind")
    assert len(watched.told) == MOST_PER_WINDOW + 1
    watched.now += WINDOW_SECONDS
    watched.log.error("step %d failed", 1000)
    assert watched.told[-1].__dict__["left_out"] == 1000 - MOST_PER_WINDOW
    assert not hasattr(watched.told[0], "left_out")


def test_the_lines_of_calls_are_never_left_out() -> None:
    watched = Watched()
    for _ in range(100):
        watched.log.info("%s %s", "/a.B/C", "OK")
    assert len(watched.told) == 100


def test_kinds_without_end_take_no_memory_without_end() -> None:
    watched = Watched()
    for number in range(3 * MAX_KINDS):
        watched.log.warning(f"value {number}")
    assert len(watched.told) == 3 * MAX_KINDS
    [gate] = watched.log.handlers[0].filters
    assert len(gate._kinds) <= MAX_KINDS  # type: ignore[union-attr]
