"""mlx_lm's parsers of tool calls: the modules of `mlx_lm.tool_parsers`, of which `parse_tool_call` is used.

They are not among mlx_lm's public names; it is pinned exactly, and text/families.py has a table of their names and
markers that a test compares with them.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from .importing import IMPORTS

MATCH_SECONDS = 0.2
"""Their patterns take quadratic time on some texts; a match that takes longer raises TimeoutError."""

_MATCHING = frozenset({"findall", "finditer", "match", "search"})


@cache
def open_tool_parser(name: str) -> Callable[[str, list[dict[str, Any]]], Any]:
    """The parser `name`: (text between the markers, tools as templates see them) -> one call or a list of them, each a
    dict with name, arguments and maybe id. What it raises for text that it can't read may be any Exception.

    Blocking: the first call may import mlx_lm (a second or two).
    """
    with IMPORTS:
        import_module("inferd_server.engine.upstream")  # imports mlx_lm so that the process stays as it was
        parse = import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call
    home: dict[str, Any] = parse.__globals__  # some modules take over another's parser
    for key, value in list(home.items()):
        # A compiled pattern of the package `regex`, which knows timeouts.
        if hasattr(value, "finditer") and not isinstance(value, _Limited):
            home[key] = _Limited(value)
    return parse  # type: ignore[no-any-return]  # mlx_lm has no types


class _Limited:
    """A compiled pattern whose matching takes a bounded time."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._pattern, name)
        return _limited(value) if name in _MATCHING else value


def _limited(method: Callable[..., Any]) -> Callable[..., Any]:
    def match(*arguments: Any) -> Any:
        return method(*arguments, timeout=MATCH_SECONDS)

    return match
