"""A server whose event loop is stuck: a probe's own timeout tells, the log says where, and all goes on afterwards."""

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from support.calls import SERVING, Peer, read, read_until, streamed, unary
from support.contention import serving_with_faults
from support.servers import write_config


async def probe_until_it_fails(peer: Peer) -> None:
    for _ in range(100):
        await peer.health.Check(health_pb2.HealthCheckRequest(), timeout=1)


async def test_a_stuck_loop_fails_probes_is_told_of_and_loses_nothing(tiny_model: Path, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    config = write_config(tmp_path, [{"name": "tiny", "path": tiny_model, "preload": True}], budget_gb=1)
    with serving_with_faults(config, INFERD_TEST_STUCK=str(stuck)) as server:
        server.wait_until_ready()
        async with Peer(server.address) as peer:
            request = streamed("tiny", prompt="x", max_tokens=1500, ignore_eos=True, return_ids=True)
            running = peer.inference.StreamGenerate(request)
            answer = await read_until(running, "delta")
            stuck.touch()
            server.signal(signal.SIGUSR1)
            try:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await probe_until_it_fails(peer)
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                await asyncio.to_thread(server.wait_for_log, "the event loop is stuck")
                assert "block_the_loop" in "".join(server.log)
            finally:
                stuck.unlink()
            await asyncio.to_thread(server.wait_for_log, "the event loop runs again")
            for name in ("", "liveness", "readiness", "inferd.v1.Model/tiny"):
                assert await peer.check(name) == SERVING
            await read(running, answer)
            assert answer.end.usage.completion_tokens == len(answer.token_ids) == 1500
            await peer.inference.Generate(unary("tiny", prompt="x", max_tokens=1))
        server.signal()
        assert server.wait() == 0
