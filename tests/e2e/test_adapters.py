"""Entries that share one model's folder under different adapters, over a real socket."""

import asyncio
from pathlib import Path

from inferd.v1 import model_service_pb2 as mod
from support import tiny_adapter
from support.calls import Peer, failure_of, unary
from support.engine_room import Reference
from support.servers import serving, write_config
from support.wire import reason_of

PROMPT = "one prompt for everybody, and longer than a block of the prefix cache: " * 2


async def test_entries_of_one_folder_answer_each_by_its_own_adapter(tmp_path: Path, tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    prompt_ids = AutoTokenizer.from_pretrained(tiny_model).encode(PROMPT)
    adapters = {name: tiny_adapter.build(tmp_path / name, tiny_model, seed=seed) for seed, name in enumerate("ab")}
    broken = tiny_adapter.build(tmp_path / "broken", tiny_model)
    (broken / "adapters.safetensors").write_bytes(b"")
    models = [
        {"name": "plain", "path": tiny_model},
        *({"name": name, "path": tiny_model, "adapter_path": name} for name in adapters),
        {"name": "broken", "path": tiny_model, "adapter_path": "broken"},
    ]
    expected = {name: Reference(tiny_model, adapters.get(name)).greedy(prompt_ids, 24) for name in ("plain", *adapters)}
    assert len({tuple(tokens) for tokens in expected.values()}) == 3
    with serving(write_config(tmp_path, models, budget_gb=1)) as server:
        async with Peer(server.address) as peer:
            for _ in range(2):  # the second time from the prefix caches
                calls = [
                    peer.inference.Generate(
                        unary(name, prompt=PROMPT, return_ids=True, max_tokens=24, temperature=0.0, ignore_eos=True)
                    )
                    for name in expected
                ]
                answers = await asyncio.gather(*calls)
                assert [list(answer.token_ids) for answer in answers] == list(expected.values())
            assert all(answer.usage.cached_prompt_tokens > 0 for answer in answers)
            failure = await failure_of(peer.inference.Generate(unary("broken", prompt=PROMPT)))
            assert reason_of(failure) == "MODEL_CORRUPT"
            shown = (await peer.models.ListModels(mod.ListModelsRequest())).models
            assert len({model.revision for model in shown if model.name != "broken"}) == 3
