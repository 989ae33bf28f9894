"""UnloadModel in its modes; WatchModels and ListModels; looking never touches what is resident."""

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from inferd.v1 import model_service_pb2
from support.contention import GIB, Client, connected, policy, state_of
from support.servers import ServerProcess
from support.wire import facts_of, fields_of, reason_of

SLOW = "slow-load-x"


# --- UnloadModel ------------------------------------------------------------------------------------------------------


async def test_a_drain_lets_running_requests_finish_and_tells_what_came_back(client: Client) -> None:
    alone = await client.answer("a", 100)
    running = client.ask("a", 100)
    await running.tokens(3)
    answer = await client.unload("a")
    assert (await running.result()).ids == alone.ids
    assert state_of(answer.model) == "UNLOADED"
    assert answer.model.memory.charged_bytes == 0
    assert 300_000 < answer.freed_bytes < 2_000_000  # measured: about 420 KiB, not the stated GiB
    assert (await client.list()).memory.used_bytes == 0


async def test_unloading_what_is_not_loaded_is_no_error(client: Client) -> None:
    for mode in ("DRAIN", "IF_IDLE", "FORCE"):
        answer = await client.unload("b", mode)
        assert answer.freed_bytes == 0
        assert state_of(answer.model) == "UNLOADED"


async def test_a_drain_that_takes_too_long_is_given_up_and_the_model_serves_again(client: Client) -> None:
    running = await client.run("a")
    begun = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unload("a", "DRAIN", 0.4)
    assert 0.4 <= time.monotonic() - begun < 15
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason_of(caught.value) == "DRAIN_TIMEOUT"
    assert facts_of(caught.value)["running"] == "1"
    assert await client.state("a") == "LOADED"
    assert len((await client.answer("a")).ids) == 8
    await running.tokens(len(running.output.ids) + 3)


async def test_requests_that_come_during_a_drain_wait_for_the_next_generation(client: Client) -> None:
    running = client.ask("a", 120)
    await running.tokens(3)
    unloading = asyncio.create_task(client.unload("a"))
    await client.until_state("a", "DRAINING")
    late = client.ask("a", 5, contention=policy("wait"))
    await unloading
    output = await late.result()
    assert output.started.model.load_generation == running.output.started.model.load_generation + 1
    assert (await running.result()).finished.preemptions == 0


async def test_a_preemption_does_not_wait_for_a_drain_and_the_unload_is_answered(client: Client) -> None:
    alone = await client.answer("a", 200)
    running = client.ask("a", 200)
    await running.tokens(3)
    unloading = asyncio.create_task(client.unload("a"))
    await client.until_state("a", "DRAINING")
    await client.answer("b", 3, contention=policy("preempt"))
    assert not running.is_over
    answer = await unloading
    assert answer.freed_bytes > 0
    output = await running.result()
    assert output.ids == alone.ids
    assert output.finished.preemptions == 1


async def test_if_idle_refuses_a_busy_model(client: Client) -> None:
    running = await client.run("a")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unload("a", "IF_IDLE")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(caught.value) == "MODEL_BUSY"
    assert facts_of(caught.value)["running"] == "1"
    await running.leave()
    await client.settled()
    assert state_of((await client.unload("a", "IF_IDLE")).model) == "UNLOADED"


async def test_force_ends_running_requests_with_their_counts(client: Client) -> None:
    running = client.ask("a", 3900, request_id="forced")
    await running.tokens(5)
    answer = await client.unload("a", "FORCE")
    assert state_of(answer.model) == "UNLOADED"
    error = await running.error()
    assert error.code() is grpc.StatusCode.ABORTED
    assert reason_of(error) == "MODEL_UNLOADED"
    facts = facts_of(error)
    assert facts["request_id"] == "forced"
    assert facts["completion_tokens"] == str(len(running.output.ids))
    assert facts["last_sequence"] == str(running.output.sequences[-1])


async def test_while_queued_force_ends_the_tickets_and_if_idle_is_busy(client: Client) -> None:
    await client.run("a")
    waiter = client.ask("b", contention=policy("wait"), waiting_events=True)
    await waiter.waits("QUEUED")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unload("b", "IF_IDLE")
    assert reason_of(caught.value) == "MODEL_BUSY"
    assert (await client.unload("b", "FORCE")).freed_bytes == 0
    assert reason_of(await waiter.error()) == "MODEL_UNLOADED"
    assert await client.state("b") == "UNLOADED"


async def test_while_loading_force_ends_the_load_and_drain_waits_for_its_tickets(client: Client) -> None:
    waiter = client.ask(SLOW, waiting_events=True)
    await waiter.waits("LOADING")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unload(SLOW, "IF_IDLE")
    assert reason_of(caught.value) == "MODEL_BUSY"
    await client.unload(SLOW, "FORCE")
    assert reason_of(await waiter.error()) == "MODEL_UNLOADED"
    assert (await client.list()).memory.used_bytes == 0
    waiter = client.ask(SLOW, 20, waiting_events=True)
    await waiter.waits("LOADING")
    answer = await client.unload(SLOW, "DRAIN")
    assert len((await waiter.result()).ids) == 20
    assert state_of(answer.model) == "UNLOADED"


async def test_an_unload_goes_on_when_its_caller_leaves(client: Client) -> None:
    running = client.ask("a", 100)
    await running.tokens(3)
    unloading = asyncio.create_task(client.unload("a"))
    await client.until_state("a", "DRAINING")
    unloading.cancel()
    await running.result()
    await client.until_state("a", "UNLOADED")


async def test_an_interrupted_request_ends_when_its_model_is_force_unloaded(client: Client) -> None:
    victim = client.ask("a", 3000, waiting_events=True)
    await victim.tokens(3)
    await client.run("b", contention=policy("preempt"))
    await victim.waits("PREEMPTED")
    await client.unload("a", "FORCE")
    error = await victim.error()
    assert reason_of(error) == "MODEL_UNLOADED"
    assert facts_of(error)["completion_tokens"] == str(len(victim.output.ids))


# --- idle unload ------------------------------------------------------------------------------------------------------


async def test_idle_models_are_unloaded_and_looking_does_not_keep_them(start_server: Any) -> None:
    models = [
        *start_server.entries("a", idle_unload_s=0.6),
        *start_server.entries("b"),
        *start_server.entries("c", pinned=True),
        *start_server.entries("d", idle_unload_s=0),
    ]
    with ExitStack() as stack:
        server = start_server(budget_gb=4.5, models=models, manager={"idle_unload_s": 1.0}, stack=stack)
        async with connected(server) as client:
            for name in "abcd":
                await client.answer(name, 2)
            busy = client.ask("b", 300)
            await busy.tokens(1)
            begun = time.monotonic()
            ends: dict[str, float] = {}
            while time.monotonic() - begun < 15 and len(ends) < 2:  # looking all the while
                for name, state in (await client.states()).items():
                    await client.model(name)
                    if state == "UNLOADED":
                        ends.setdefault(name, time.monotonic() - begun)
                await asyncio.sleep(0.02)
            assert set(ends) == {"a", "b"}
            assert ends["a"] < 6.0
            assert ends["b"] >= 1.9  # its second began when the answer had ended
            assert len((await busy.result()).ids) == 300
            states = await client.states()
            assert (states["c"], states["d"]) == ("LOADED", "LOADED")


# --- ListModels -------------------------------------------------------------------------------------------------------


async def test_lists_are_paged_and_filtered(client: Client) -> None:
    await client.answer("b")
    names = ["a", "b", "c", SLOW, "small"]
    whole = await client.list()
    assert [model.name for model in whole.models] == names
    assert whole.next_page_token == ""
    paged, token = [], ""
    while True:
        page = await client.list(page_size=2, page_token=token)
        assert page.memory.used_bytes == GIB
        paged += [model.name for model in page.models]
        token = page.next_page_token
        if not token:
            break
        assert len(page.models) == 2
    assert paged == names
    loaded = await client.list(states=[model_service_pb2.MODEL_STATE_LOADED])
    assert [model.name for model in loaded.models] == ["b"]
    assert loaded.memory.limit_bytes == GIB * 3 // 2
    for bad in ({"page_token": "rubbish"}, {"page_size": -1}):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.list(**bad)
        assert reason_of(caught.value) == "INVALID_PARAMETER"
        assert fields_of(caught.value) == list(bad)


async def test_looking_never_touches_the_order_of_eviction(two_places: ServerProcess) -> None:
    async with connected(two_places) as client:
        await client.answer("a")
        await client.answer("b")
        used = (await client.model("a")).last_used_time
        for _ in range(3):
            assert (await client.model("a")).last_used_time == used
            await client.list()
            await client.load("a", validate_only=True)
        await client.answer("c")
        states = await client.states()
        assert (states["a"], states["b"], states["c"]) == ("UNLOADED", "LOADED", "LOADED")
        await client.answer("b")
        await client.answer("a")  # evicts c, which was used before b
        states = await client.states()
        assert (states["a"], states["b"], states["c"]) == ("LOADED", "LOADED", "UNLOADED")


# --- WatchModels ------------------------------------------------------------------------------------------------------


class Watcher:
    """A watch, read by a task of its own."""

    def __init__(self, client: Client, *names: str) -> None:
        self.messages: list[Any] = []
        self.call = client.models.WatchModels(model_service_pb2.WatchModelsRequest(names=names))
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            self.messages.append(message)
            self._news.set()

    async def until(self, claim: Any) -> None:
        async with asyncio.timeout(10):
            while not claim(self):
                assert not self.task.done(), self.task
                self._news.clear()
                await self._news.wait()

    def changes(self, name: str) -> list[str]:
        """The states told of one model, repetitions (progress) taken together."""
        states = [
            state_of(m.changed) for m in self.messages if m.WhichOneof("event") == "changed" and m.changed.name == name
        ]
        return [state for i, state in enumerate(states) if i == 0 or states[i - 1] != state]

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()


async def test_a_watch_tells_a_snapshot_then_every_state_in_its_order_and_progress(
    client: Client, other: Client
) -> None:
    await client.answer("b")
    watcher = Watcher(other)
    await watcher.until(lambda w: w.messages)
    snapshot = watcher.messages[0].snapshot
    assert {m.name: state_of(m) for m in snapshot.models}["b"] == "LOADED"
    assert snapshot.memory.used_bytes == GIB
    await client.answer(SLOW)
    await client.unload(SLOW)
    await watcher.until(lambda w: w.changes(SLOW)[-1:] == ["UNLOADED"])
    assert watcher.changes("b") == ["DRAINING", "UNLOADING", "UNLOADED"]
    assert watcher.changes(SLOW) == ["QUEUED", "LOADING", "LOADED", "DRAINING", "UNLOADING", "UNLOADED"]
    loading = [
        m.changed for m in watcher.messages if m.WhichOneof("event") == "changed" and state_of(m.changed) == "LOADING"
    ]
    progress = [model.load_progress for model in loading]
    assert len(progress) >= 4
    assert progress == sorted(progress)
    assert progress[0] == 0
    assert progress[-1] > 0.5
    assert [m.sequence for m in watcher.messages] == list(range(len(watcher.messages)))
    await watcher.close()


async def test_a_watch_of_one_name_tells_of_that_model_alone(client: Client, other: Client) -> None:
    watcher = Watcher(other, "slow")
    await watcher.until(lambda w: w.messages)
    assert [m.name for m in watcher.messages[0].snapshot.models] == [SLOW]
    await client.answer("a", 2)
    await client.answer(SLOW, 2)
    await watcher.until(lambda w: w.changes(SLOW)[-1:] == ["LOADED"])
    assert watcher.changes("a") == []
    await watcher.close()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in client.models.WatchModels(model_service_pb2.WatchModelsRequest(names=["nobody"])):
            pass
    assert reason_of(caught.value) == "MODEL_NOT_FOUND"


async def test_a_watch_has_a_heartbeat_and_ends_with_the_server(start_server: Any) -> None:
    with ExitStack() as stack:
        server = start_server(stack=stack, INFERD_TEST_HEARTBEAT_SECONDS="0.3")
        client = Client(server.address)
        watcher = Watcher(client)
        begun = time.monotonic()
        await watcher.until(lambda w: len(w.messages) >= 3)
        assert time.monotonic() - begun >= 0.55
        assert [m.WhichOneof("event") for m in watcher.messages] == ["snapshot", "heartbeat", "heartbeat"]
        server.signal()
        async with asyncio.timeout(10):
            await asyncio.wait([watcher.task])
        error = watcher.task.exception()
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert reason_of(error) in {"SERVER_SHUTDOWN", "SERVER_DRAINING"}
        assert await asyncio.to_thread(server.wait) == 0
        await client.close()


async def test_a_watcher_that_does_not_read_is_bounded_and_harms_nobody(client: Client, other: Client) -> None:
    watch = other.models.WatchModels(model_service_pb2.WatchModelsRequest())
    assert (await watch.read()).WhichOneof("event") == "snapshot"
    for _ in range(15):  # nobody reads the watch
        await client.answer("a", 1)
        await client.unload("a")
    told = 0
    async with asyncio.timeout(5):
        while told < 15:
            message = await watch.read()
            told += message.WhichOneof("event") == "changed" and state_of(message.changed) == "UNLOADED"
    watch.cancel()
