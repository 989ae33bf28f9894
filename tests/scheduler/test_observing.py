"""What an observer is told of steps, and how old a step is."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from fakes.engine import ScriptedEngine, ScriptedLoading, opens, request
from inferd_server.core.model import EngineSettings
from inferd_server.core.observer import Unobserved
from inferd_server.scheduler import Scheduler
from support.streams import eventually, read


@dataclass
class Steps(Unobserved):
    """An observer that notes steps."""

    seen: list[tuple[str, int]] = field(default_factory=list)

    def step(self, model: str, seconds: float, rows: int) -> None:
        assert 0 <= seconds < 5
        self.seen.append((model, rows))


async def test_each_step_is_told_with_the_sequences_it_had() -> None:
    steps, engine = Steps(), ScriptedEngine()
    settings = EngineSettings("m", Path("/nowhere"))
    scheduler = await Scheduler.open(settings, ScriptedLoading(), opens(engine), lambda error: None, observer=steps)
    try:
        await read(scheduler.submit(request(5, max_tokens=4)))
        engine.gate.clear()
        both = [asyncio.ensure_future(read(scheduler.submit(request(5 + i, max_tokens=3)))) for i in range(2)]
        await eventually(engine.in_step.is_set)
        engine.gate.set()
        await asyncio.gather(*both)
        await eventually(lambda: scheduler.statistics().step_age_seconds == 0)
    finally:
        await scheduler.close()
    assert len(steps.seen) == engine.steps
    assert steps.seen[:4] == [("m", 1)] * 4
    assert max(rows for _, rows in steps.seen) == 2


async def test_a_step_grows_old_while_it_does_not_end() -> None:
    now, engine = [0.0], ScriptedEngine()
    settings = EngineSettings("m", Path("/nowhere"))
    scheduler = await Scheduler.open(
        settings, ScriptedLoading(), opens(engine), lambda error: None, clock=lambda: now[0]
    )
    try:
        assert scheduler.statistics().step_age_seconds == 0
        engine.gate.clear()
        reading = asyncio.ensure_future(read(scheduler.submit(request(5, max_tokens=2))))
        await eventually(engine.in_step.is_set)
        now[0] = 7.0
        assert scheduler.statistics().step_age_seconds == 7
        engine.gate.set()
        await reading
    finally:
        await scheduler.close()
