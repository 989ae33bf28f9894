"""Five models under a budget for two, and everything at once: nothing is lost, stuck, wrong or overcharged."""

from contextlib import ExitStack
from typing import Any

import pytest

from support.storm import storm

MODELS = ["a", "b", "c", "d", "e"]


async def ride_out(start_server: Any, seconds: float, clients: int, seed: int) -> None:
    with ExitStack() as stack:
        server = start_server(
            budget_gb=2.5,
            models=start_server.entries(*MODELS),
            manager={"drain_busy_after_s": 1, "min_residency_s": 0.1},
            stack=stack,
            INFERD_TEST_STEP_SECONDS="0.001",
        )
        tally = await storm(server.address, MODELS, seconds=seconds, clients=clients, seed=seed)
        print(tally)
        log = "\n".join(server.log)
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    assert tally.wrong == []
    assert tally.stuck == []
    assert tally.outcomes["served"] > seconds
    assert tally.preemptions > 0
    assert tally.looks > 5 * seconds


async def test_a_short_storm_leaves_everything_in_order(start_server: Any) -> None:
    await ride_out(start_server, seconds=10, clients=12, seed=1)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_long_storm_leaves_everything_in_order(start_server: Any) -> None:
    await ride_out(start_server, seconds=60, clients=24, seed=2)
