"""API keys in tests: made, written into a keys file, and sent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from inferd_server.config.keys import hash_of, new_key
from support.calls import Peer, failure_of
from support.wire import error_details, reason_of


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


class As:
    """Calls with one key, or with any metadata."""

    def __init__(self, peer: Peer, keys: Keys, who: str | list[tuple[str, str]]) -> None:
        self.peer = peer
        self.metadata = keys.of(who) if isinstance(who, str) else who

    def call(self, method: str, request: Any) -> Any:
        stub = self.peer.models if hasattr(self.peer.models, method) else self.peer.inference
        return getattr(stub, method)(request, metadata=self.metadata, timeout=60)

    async def failure(self, method: str, request: Any) -> grpc.aio.AioRpcError:
        call = self.call(method, request)
        if not hasattr(call, "__aiter__"):
            return await failure_of(call)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in call:
                pass
        return failure.value

    async def outcome(self, method: str, request: Any) -> str:
        """The reason of its refusal; OK."""
        call = self.call(method, request)
        try:
            if hasattr(call, "__aiter__"):
                await anext(aiter(call))
                call.cancel()
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return reason_of(error)
        return "OK"


def status_bytes(error: grpc.aio.AioRpcError) -> bytes:
    """Everything that the client was told: the status's details and its message."""
    assert error_details(error)
    trailers = dict(error.trailing_metadata() or ())
    return bytes(trailers["grpc-status-details-bin"]) + str(error.details()).encode()
