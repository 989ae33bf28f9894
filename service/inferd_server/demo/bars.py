"""How far the preparation is, for people."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .parts import Progress, Stage

WORDS: dict[Stage, str] = {
    "download": "downloading {}",
    "convert": "converting {}, once",
    "unpack": "unpacking {}",
    "train": "training {}, once",
}


@contextlib.contextmanager
def progress_bars(directory: Path) -> Iterator[Progress]:
    """Bars on stderr, one for each stage of each model, which appear when something is to be done; plain lines without
    a terminal. A line before them names the `directory`."""
    # Imported here: a prepared folder needs no bars.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    console = Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[tuple[str, Stage], TaskID] = {}

    def show(name: str, stage: Stage, done: int, total: int) -> None:
        if not tasks:
            console.print(f"preparing the demo in {directory}", markup=False, highlight=False, soft_wrap=True)
        if (name, stage) not in tasks:
            words = WORDS[stage].format(name)
            tasks[name, stage] = bars.add_task(words, total=None)
            if not console.is_terminal:
                console.print(f"{words} …")
        bars.update(tasks[name, stage], completed=done, total=total or None)

    with bars:
        yield show
