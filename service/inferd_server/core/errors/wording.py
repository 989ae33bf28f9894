"""How errors repeat names and sizes: safely, and within bounds."""

from collections.abc import Iterable

MAX_LISTED = 16
MAX_ECHO_CHARACTERS = 64


def echo(value: object) -> str:
    """A caller's value made safe to repeat: at most 64 characters, no control characters."""
    text = str(value)
    shown = text if len(text) <= MAX_ECHO_CHARACTERS else text[: MAX_ECHO_CHARACTERS - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def listed(names: Iterable[str]) -> str:
    every = sorted(names)
    shown = ",".join(echo(name) for name in every[:MAX_LISTED])
    return shown if len(every) <= MAX_LISTED else f"{shown} ({len(every)} in all)"


def size(nbytes: int) -> str:
    """Bytes, and beside them GiB, from about 5 MiB on."""
    return f"{nbytes} bytes ({nbytes / 2**30:.2f} GiB)" if nbytes >= 2**30 // 200 else f"{nbytes} bytes"
