"""The first loads of a server, models of every kind at once: their threads import packages that import each other."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inferd.v1 import inference_service_pb2 as inf
from support import tiny_embedder, tiny_llama, tiny_vlm
from support.calls import Peer, unary
from support.servers import serving, write_config

pytestmark = [pytest.mark.faults, pytest.mark.long]

TIMES = 3


async def test_models_of_every_kind_load_side_by_side_from_the_first_moment(tmp_path: Path) -> None:
    tiny_vlm.build(tmp_path / "eyes")
    tiny_embedder.build(tmp_path / "embedder")
    tiny_llama.build(tmp_path / "text")
    models = [{"name": name, "path": tmp_path / name} for name in ("eyes", "embedder", "text")]
    config = write_config(tmp_path, models, budget_gb=1)
    for _ in range(TIMES):
        with serving(config) as server:
            async with Peer(server.address) as peer:
                await peer.wait_until_ready()
                calls: list[Any] = [
                    peer.inference.Generate(unary("eyes", prompt="x", max_tokens=2)),
                    peer.inference.Embed(inf.EmbedRequest(model="embedder", texts=["x"])),
                    peer.inference.Generate(unary("text", prompt="x", max_tokens=2)),
                ]
                await asyncio.gather(*calls)
