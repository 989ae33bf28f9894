"""Page tokens: opaque to callers, bound to the query that they belong to, and good across changes of the registry."""

import base64
import zlib
from collections.abc import Iterable

VERSION = b"\x01"


def page_token(last_name: str, states: Iterable[int]) -> str:
    """The token for the page behind the model `last_name`."""
    name = last_name.encode()
    return base64.urlsafe_b64encode(VERSION + _checksum(name, states) + name).decode().rstrip("=")


def last_name_of(token: str, states: Iterable[int]) -> str:
    """The name that the page begins behind; "" for the first page.

    Raises:
        ValueError: not a token of ours, or of a query with other states.
    """
    if not token:
        return ""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise ValueError("not a page token") from None
    version, checksum, name = raw[:1], raw[1:5], raw[5:]
    if version != VERSION or checksum != _checksum(name, states):
        raise ValueError("not a page token of this query")
    return name.decode()


def _checksum(name: bytes, states: Iterable[int]) -> bytes:
    query = ",".join(map(str, sorted(set(states)))).encode()
    return zlib.crc32(query + b"/" + name).to_bytes(4, "big")
