"""A draft model over a real socket: the answers are those without it."""

import asyncio
from pathlib import Path

from support import tiny_llama
from support.calls import Peer, read, streamed, unary
from support.engine_room import Reference
from support.servers import serving, write_config

PROMPTS = [[5, 9, 100, 31], [77, 8, 12], list(range(20, 90))]


async def test_answers_alone_together_and_streamed_are_those_without_a_draft_model(
    tmp_path: Path, tiny_model: Path
) -> None:
    poor = tiny_llama.build(tmp_path / "poor", layers=1, seed=7)
    reference = Reference(tiny_model)
    expected = [reference.greedy(prompt, 48) for prompt in PROMPTS]
    wanted = {"return_ids": True, "max_tokens": 48, "ignore_eos": True}
    models = [
        {"name": "right", "path": tiny_model, "draft_model": tiny_model},
        {"name": "wrong", "path": tiny_model, "draft_model": poor},
    ]
    with serving(write_config(tmp_path, models, budget_gb=1)) as server:
        async with Peer(server.address) as peer:
            for name in ("right", "wrong"):
                for prompt, tokens in zip(PROMPTS, expected, strict=True):
                    answer = await read(peer.inference.StreamGenerate(streamed(name, ids=prompt, **wanted)))
                    assert answer.token_ids == tokens
                calls = [peer.inference.Generate(unary(name, ids=prompt, **wanted)) for prompt in PROMPTS]
                assert [list(answer.token_ids) for answer in await asyncio.gather(*calls)] == expected
