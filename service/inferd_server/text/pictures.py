"""What a chat template writes where a message has a picture: found by trying."""

from collections.abc import Callable
from typing import Any

BEFORE, AFTER = "inferdbefore", "inferdafter"
Render = Callable[[list[dict[str, Any]]], str]


def picture_mark(render: Render) -> str:
    """The text that a template puts in the place of every picture; "" where it has none, or not the same for each.

    Args:
        render: renders messages; it may raise what it likes.
    """
    one, two = _between(render, 1), _between(render, 2)
    return one if one and two == one * 2 and BEFORE not in one and AFTER not in one else ""


def wants_parts(render: Render) -> bool:
    """Whether a template drops a message that is one string, and shows it as a list of one part (idefics3's does)."""
    as_parts = _rendered(render, [{"type": "text", "text": BEFORE}])
    return BEFORE in as_parts and BEFORE not in _rendered(render, BEFORE)


def _between(render: Render, count: int) -> str:
    content = [{"type": "text", "text": BEFORE}, *[{"type": "image"}] * count, {"type": "text", "text": AFTER}]
    _, _, rest = _rendered(render, content).partition(BEFORE)
    between, found, _ = rest.partition(AFTER)
    return between if found else ""


def _rendered(render: Render, content: Any) -> str:
    try:
        return render([{"role": "user", "content": content}])
    except Exception:  # noqa: BLE001 - a template may fail in any way; then it takes no such content
        return ""
