"""A storm of clients over models that do not all fit: random requests, strategies, cancels, deadlines, unloads."""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from support.contention import Client, ledger_watched, policy, request, unary
from support.wire import reason_of

STRATEGIES = ["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
STUCK_SECONDS = 60.0
"""A call that takes so long is stuck."""
EXPECTED = {
    "CAPACITY_EXHAUSTED",
    "WAIT_TIMEOUT",
    "CANCELLED_BY_REQUEST",
    "MODEL_UNLOADED",
    "MODEL_NOT_LOADED",
    "PREEMPTED",  # its deadline was too near to resume
    "QUEUE_FULL",
    "MODEL_BUSY",
    "DRAIN_TIMEOUT",
}


@dataclass(frozen=True)
class Kind:
    """A request that has one right answer."""

    model: str
    tokens: int
    options: tuple[tuple[str, Any], ...]

    def arguments(self) -> dict[str, Any]:
        return dict(self.options)


def kinds(models: list[str]) -> list[Kind]:
    """Requests of every model: greedy and seeded, short and long, with a stop sequence, with penalties."""
    found = []
    for model in models:
        found += [
            Kind(model, 5, (("prompt", "short"),)),
            Kind(model, 60, (("prompt", "long one"),)),
            Kind(model, 40, (("prompt", "seeded"), ("seed", 5), ("temperature", 1.0))),
            Kind(model, 30, (("prompt", "x" * 700), ("seed", 6), ("temperature", 0.7), ("repetition_penalty", 1.2))),
        ]
    return found


@dataclass
class Tally:
    """What came of the storm."""

    outcomes: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    wrong: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0
    looks: int = 0


class Storm:
    """Runs clients against a server for a while."""

    def __init__(self, address: str, models: list[str], seed: int) -> None:
        self._address = address
        self._models = models
        self._kinds = kinds(models)
        self._random = random.Random(seed)
        self._right: dict[Kind, tuple[list[int], str]] = {}
        self.tally = Tally()

    async def run(self, seconds: float, clients: int) -> Tally:
        """The storm; afterwards nothing is left in the server."""
        client = Client(self._address)
        try:
            for kind in self._kinds:
                output = await client.answer(kind.model, kind.tokens, **kind.arguments())
                self._right[kind] = (output.ids, output.text)
            async with ledger_watched(self._address) as looks:
                ends_at = time.monotonic() + seconds
                await asyncio.gather(
                    *(self._visit(ends_at, random.Random(self._random.random())) for _ in range(clients)),
                    self._meddle(ends_at, random.Random(self._random.random())),
                )
                await client.settled()
                self.tally.looks = looks[0]
            await client.clear()
        finally:
            await client.close()
        return self.tally

    async def _visit(self, ends_at: float, dice: random.Random) -> None:
        client = Client(self._address)
        try:
            while time.monotonic() < ends_at:
                await self._bounded(self._one(client, dice), "a request")
                if dice.random() < 0.1:  # a killed client, and a new one
                    client.ask(dice.choice(self._models), 50)
                    await asyncio.sleep(dice.random() * 0.05)
                    await client.channel.close()
                    client = Client(self._address)
        finally:
            await client.close()

    async def _bounded(self, work: Any, what: str) -> None:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                await work
        except TimeoutError:
            self.tally.stuck.append(what)
        self.tally.longest_seconds = max(self.tally.longest_seconds, time.monotonic() - begun)

    async def _one(self, client: Client, dice: random.Random) -> None:
        kind = dice.choice(self._kinds)
        strategy = dice.choice(STRATEGIES)
        contention = policy(strategy, wait_timeout=dice.choice([0.3, 2, 10]), preempt_after=dice.choice([0.05, 0.2]))
        fate = dice.random()
        options = {
            **kind.arguments(),
            "contention": contention,
            "priority": dice.choice([0, 0, 0, 5, -5]),
            "preemptible": dice.random() > 0.1,
            "request_id": f"storm-{dice.getrandbits(60)}",
            "waiting_events": dice.random() < 0.5,
        }
        timeout = dice.choice([0.05, 0.5, 1.5]) if fate > 0.9 else None
        if fate < 0.15:
            await self._unary(client, kind, options)
            return
        answer = client.ask(kind.model, kind.tokens, timeout=timeout, **options)
        if fate < 0.3:
            await asyncio.sleep(dice.random() * 0.3)
            if fate < 0.22:
                await client.cancel(options["request_id"])
            else:
                await answer.leave()
                self.tally.outcomes["left"] += 1
                return
        await asyncio.wait([answer._task])
        error = answer._task.exception()
        if error is not None:
            self._note_error(error, kind, timeout)
            return
        output = await answer.result()
        self._check(kind, output.ids, output.text, output.finished.preemptions)

    async def _unary(self, client: Client, kind: Kind, options: dict[str, Any]) -> None:
        options = {key: value for key, value in options.items() if key != "waiting_events"}
        try:
            response = await client.inference.Generate(unary(request(kind.model, kind.tokens, **options)))
        except grpc.aio.AioRpcError as error:
            self._note_error(error, kind, None)
            return
        self._check(kind, list(response.token_ids), response.text, response.preemptions)

    def _check(self, kind: Kind, ids: list[int], text: str, preemptions: int) -> None:
        self.tally.outcomes["served"] += 1
        self.tally.preemptions += preemptions
        if (ids, text) != self._right[kind]:
            self.tally.wrong.append(f"{kind} after {preemptions} preemptions")

    def _note_error(self, error: BaseException, kind: Kind, timeout: float | None) -> None:
        assert isinstance(error, grpc.aio.AioRpcError), error
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and timeout is not None:
            self.tally.outcomes["deadline"] += 1
            return
        reason = reason_of(error)
        self.tally.outcomes[reason] += 1
        if reason not in EXPECTED:
            self.tally.wrong.append(f"{kind}: {error}")

    async def _meddle(self, ends_at: float, dice: random.Random) -> None:
        """Unloads, loads, pins, looks: what an operator does."""
        client = Client(self._address)
        try:
            while time.monotonic() < ends_at:
                await asyncio.sleep(dice.random() * 0.4)
                await self._bounded(self._meddle_once(client, dice), "an operator's call")
        finally:
            await client.close()

    async def _meddle_once(self, client: Client, dice: random.Random) -> None:
        model = dice.choice(self._models)
        strategy = policy(dice.choice(STRATEGIES), wait_timeout=0.5, preempt_after=0.1)
        work: Any = dice.choice(
            [
                lambda: client.unload(model, "DRAIN", 0.5),
                lambda: client.unload(model, "IF_IDLE"),
                lambda: client.unload(model, "FORCE"),
                lambda: client.load(model, contention=strategy, timeout=3),
                lambda: client.load(model, detach=True, contention=strategy),
                lambda: client.load(model, reload=True, contention=strategy, timeout=3),
                lambda: client.load(model, validate_only=True),
            ]
        )
        try:
            await work()
            self.tally.outcomes["operated"] += 1
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and error.details() == "Deadline Exceeded":
                self.tally.outcomes["operator's deadline"] += 1
                return
            self._note_error(error, Kind(model, 0, ()), None)


async def storm(address: str, models: list[str], *, seconds: float, clients: int, seed: int) -> Tally:
    """Run one and return its tally."""
    with suppress(asyncio.CancelledError):
        return await Storm(address, models, seed).run(seconds, clients)
    raise AssertionError("cancelled")
