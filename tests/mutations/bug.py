"""A bug to plant: `before`, which occurs exactly once in a file of the registry, becomes `after`."""

import shutil
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Bug(NamedTuple):
    """One row of the table; `name` says what it breaks."""

    name: str
    file: str
    before: str
    after: str

    def apply(self) -> str:
        """The file's text with the bug in it."""
        source = (ROOT / "service" / "inferd_server" / "registry" / self.file).read_text()
        assert source.count(self.before) == 1, f"{self.name}: {source.count(self.before)} places in {self.file}"
        return source.replace(self.before, self.after)

    def plant(self, folder: Path) -> Path:
        """A copy of the server's sources with the bug in it; returns the folder to import from."""
        service = folder / "service"
        shutil.copytree(ROOT / "service", service, ignore=shutil.ignore_patterns("__pycache__"))
        (service / "inferd_server" / "registry" / self.file).write_text(self.apply())
        return service
