"""API keys in tests: made, written into a keys file, and sent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from inferd_server.config.keys import hash_of, new_key


class Keys:
    """Keys by id, in a file. The keys themselves are known here alone.

    Attributes:
        path: the file.
        secrets: the keys by id.
    """

    def __init__(self, path: Path, **entries: Mapping[str, Any]) -> None:
        """`entries` are the rules of each id."""
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, str] = {}
        for key_id, rules in entries.items():
            self.set(key_id, **rules)
        self.write()

    def set(self, key_id: str, **rules: Any) -> None:
        """Add a key, or give one other rules; `write` puts that into the file."""
        self.secrets.setdefault(key_id, new_key())
        self.entries[key_id] = {"id": key_id, "hash": hash_of(self.secrets[key_id]), **rules}

    def remove(self, key_id: str) -> None:
        """Take a key away."""
        del self.entries[key_id]

    def write(self) -> None:
        """Replace the file at once, as an operator's tools do."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"keys": list(self.entries.values())}))
        fresh.replace(self.path)

    def of(self, key_id: str) -> list[tuple[str, str]]:
        """The metadata of a call with this key."""
        return [("authorization", f"Bearer {self.secrets[key_id]}")]
