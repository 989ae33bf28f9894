"""The fixture that fails a test which blocks the event loop does so."""

import asyncio
import socket
from pathlib import Path

import pytest
from blockbuster import BlockingError

from inferd_server.rpc.listening import _remove_stale_socket


async def test_touching_files_on_the_loop_is_an_error_and_on_a_thread_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(BlockingError):
        _remove_stale_socket(path, "unix:stale")
    assert path.exists()
    await asyncio.to_thread(_remove_stale_socket, path, "unix:stale")
    assert not path.exists()
