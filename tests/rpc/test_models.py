"""ModelService over a real socket."""

import asyncio
import itertools

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from fakes.registry import FakeRegistry, entry, memory_snapshot
from inferd.v1 import generation_pb2 as gen
from inferd.v1 import model_service_pb2 as pb
from inferd_server.core.errors import capacity_exhausted
from inferd_server.core.model import ContentionPolicy, ModelState, Strategy, UnloadMode
from inferd_server.rpc.paging import last_name_of, page_token
from support.rpc_world import World, open_world
from support.streams import eventually
from support.wire import facts_of, fields_of, reason_of


async def refused(call: grpc.aio.UnaryUnaryCall) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_model_is_shown_with_everything_known_about_it(world: World) -> None:
    world.registry.set(
        "tiny",
        state=ModelState.FAILED,
        last_error=("MODEL_CORRUPT", "truncated", 1_700_000_001.0),
        generation=4,
        charged_nbytes=1,
        weights_nbytes=2,
        estimated_nbytes=3,
        cache_nbytes=4,
        pinned=True,
        running=5,
        waiting=6,
        last_used_time=1_700_000_002.0,
    )
    model = (await world.models.GetModel(pb.GetModelRequest(name="small"))).model

    assert (model.name, list(model.aliases), model.revision, model.architecture) == ("tiny", ["small"], "r1", "llama")
    assert list(model.capabilities) == [pb.MODEL_CAPABILITY_GENERATE, pb.MODEL_CAPABILITY_CHAT]
    assert (model.context_length, model.state, model.load_generation) == (128, pb.MODEL_STATE_FAILED, 4)
    assert model.state_time.ToNanoseconds() == 1_700_000_000_250_000_000
    assert (model.last_error.reason, model.last_error.message) == ("MODEL_CORRUPT", "truncated")
    assert model.last_error.time.seconds == 1_700_000_001
    assert model.memory == pb.ModelMemory(charged_bytes=1, weights_bytes=2, estimated_bytes=3, cache_bytes=4)
    assert (model.pinned, model.running_requests, model.waiting_requests) == (True, 5, 6)
    assert model.last_used_time.seconds == 1_700_000_002
    assert model.isolation == pb.MODEL_ISOLATION_THREAD


async def test_a_model_never_used_has_no_last_use(world: World) -> None:
    model = (await world.models.GetModel(pb.GetModelRequest(name="big"))).model
    assert not model.HasField("last_used_time")
    assert not model.HasField("last_error")


async def test_an_unknown_model_is_not_found(world: World) -> None:
    calls = [
        world.models.GetModel(pb.GetModelRequest(name="nope")),
        world.models.LoadModel(pb.LoadModelRequest(name="nope")),
        world.models.UnloadModel(pb.UnloadModelRequest(name="", mode=99)),
    ]
    for call in calls:
        assert reason_of(await refused(call)) == "MODEL_NOT_FOUND"
    assert world.registry.calls == []


async def test_models_are_listed_page_by_page_with_the_budget() -> None:
    names = [f"m{i:03}" for i in range(250)]
    registry = FakeRegistry(*map(entry, names))
    registry.memory = memory_snapshot(
        limit_nbytes=10, used_nbytes=5, reserved_nbytes=3, ceiling_nbytes=20, active_nbytes=7
    )
    async with open_world(registry=registry) as world:
        pages, token = [], ""
        while not pages or token:
            page = await world.models.ListModels(pb.ListModelsRequest(page_token=token))
            assert page.memory == pb.MemoryBudget(
                limit_bytes=10, used_bytes=5, reserved_bytes=3, ceiling_bytes=20, active_bytes=7
            )
            pages.append([m.name for m in page.models])
            token = page.next_page_token

        assert [len(page) for page in pages] == [100, 100, 50]
        assert list(itertools.chain(*pages)) == names
        big = await world.models.ListModels(pb.ListModelsRequest(page_size=2**31 - 1))
        assert (len(big.models), big.next_page_token) == (250, "")
        exact = await world.models.ListModels(pb.ListModelsRequest(page_size=250))
        assert exact.next_page_token == ""


async def test_more_than_a_thousand_are_taken_as_a_thousand() -> None:
    registry = FakeRegistry(*(entry(f"m{i:04}") for i in range(1001)))
    async with open_world(registry=registry) as world:
        page = await world.models.ListModels(pb.ListModelsRequest(page_size=5000))
        assert len(page.models) == 1000
        assert page.next_page_token


async def test_a_state_filter_applies_to_all_pages(world: World) -> None:
    world.registry.set("big", state=ModelState.LOADED)
    loaded = await world.models.ListModels(pb.ListModelsRequest(states=[pb.MODEL_STATE_LOADED]))
    either = await world.models.ListModels(
        pb.ListModelsRequest(states=[pb.MODEL_STATE_UNLOADED, pb.MODEL_STATE_LOADED], page_size=1)
    )
    assert [m.name for m in loaded.models] == ["big"]
    assert [m.name for m in either.models] == ["big"]
    rest = await world.models.ListModels(
        pb.ListModelsRequest(states=[pb.MODEL_STATE_LOADED, pb.MODEL_STATE_UNLOADED], page_token=either.next_page_token)
    )
    assert [m.name for m in rest.models] == ["tiny"]


async def test_bad_pages_are_refused_with_all_violations(world: World) -> None:
    request = pb.ListModelsRequest(page_size=-1, page_token="§", states=[pb.MODEL_STATE_LOADED, 0, 99])
    error = await refused(world.models.ListModels(request))
    assert fields_of(error) == ["page_size", "page_token", "states[1]", "states[2]"]
    first = await world.models.ListModels(pb.ListModelsRequest(page_size=1))
    other = pb.ListModelsRequest(page_token=first.next_page_token, states=[pb.MODEL_STATE_LOADED])
    assert fields_of(await refused(world.models.ListModels(other))) == ["page_token"]


@given(st.text(), st.sets(st.integers(0, 8)))
def test_a_page_token_names_where_the_next_page_begins(name: str, states: set[int]) -> None:
    assert last_name_of(page_token(name, states), states) == name


@given(st.text(min_size=1) | st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True))
def test_a_made_up_page_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match=r"page token"):
        last_name_of(token, ())


async def test_loading_passes_every_option_on_and_answers_with_the_outcome(world: World) -> None:
    world.registry.memory = memory_snapshot(used_nbytes=77)
    request = pb.LoadModelRequest(
        name="small",
        contention=gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_FAIL, wait_timeout=Duration(seconds=2)),
        detach=True,
        pin=False,
        reload=True,
    )
    response = await world.models.LoadModel(request)

    assert world.registry.calls == [
        (
            "load",
            "tiny",
            {
                "policy": ContentionPolicy(Strategy.FAIL, 2.0, 15.0),
                "detach": True,
                "validate_only": False,
                "pin": False,
                "reload": True,
            },
        )
    ]
    assert response.model.state == pb.MODEL_STATE_LOADED
    assert list(response.evicted_models) == ["big"]
    assert response.load_time.ToMilliseconds() == 1500
    assert (response.fits, response.memory.used_bytes) == (True, 77)


async def test_unset_options_of_a_load_stay_unset(world: World) -> None:
    await world.models.LoadModel(pb.LoadModelRequest(name="tiny"))
    assert world.registry.calls[0][2] == {
        "policy": None,
        "detach": False,
        "validate_only": False,
        "pin": None,
        "reload": False,
    }


async def test_a_load_that_does_not_fit_has_its_facts(world: World) -> None:
    world.registry.error = capacity_exhausted("tiny", ["big"], 5, 6, 7)
    error = await refused(world.models.LoadModel(pb.LoadModelRequest(name="tiny")))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert facts_of(error)["blocking_models"] == "big"


async def test_a_bad_or_denied_policy_of_a_load_changes_nothing(world: World) -> None:
    denied = gen.ContentionPolicy(strategy=gen.CONTENTION_STRATEGY_PREEMPT)
    error = await refused(world.models.LoadModel(pb.LoadModelRequest(name="nope", contention=denied)))
    assert reason_of(error) == "STRATEGY_DENIED"
    bad = gen.ContentionPolicy(wait_timeout=Duration(seconds=-1))
    error = await refused(world.models.LoadModel(pb.LoadModelRequest(name="tiny", contention=bad)))
    assert fields_of(error) == ["contention.wait_timeout"]
    assert world.registry.calls == []


async def test_a_deadline_ends_the_wait_for_a_load(world: World) -> None:
    world.registry.load_forever = True
    error = await refused(world.models.LoadModel(pb.LoadModelRequest(name="tiny"), timeout=0.1))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (pb.UNLOAD_MODE_UNSPECIFIED, UnloadMode.DRAIN),
        (pb.UNLOAD_MODE_DRAIN, UnloadMode.DRAIN),
        (pb.UNLOAD_MODE_IF_IDLE, UnloadMode.IF_IDLE),
        (pb.UNLOAD_MODE_FORCE, UnloadMode.FORCE),
    ],
)
async def test_each_unload_mode_means_its_word(world: World, mode: int, word: UnloadMode) -> None:
    response = await world.models.UnloadModel(pb.UnloadModelRequest(name="small", mode=mode))
    assert world.registry.calls == [("unload", "tiny", {"mode": word, "drain_timeout_seconds": None})]
    assert (response.model.state, response.freed_bytes) == (pb.MODEL_STATE_UNLOADED, 1000)


async def test_a_drain_timeout_of_zero_is_not_unset(world: World) -> None:
    await world.models.UnloadModel(pb.UnloadModelRequest(name="tiny", drain_timeout=Duration()))
    assert world.registry.calls[0][2]["drain_timeout_seconds"] == 0.0


async def test_a_bad_unload_is_refused_with_all_violations(world: World) -> None:
    request = pb.UnloadModelRequest(name="tiny", mode=9, drain_timeout=Duration(seconds=-1))
    assert fields_of(await refused(world.models.UnloadModel(request))) == ["mode", "drain_timeout"]
    assert world.registry.calls == []


# --- watching -----------------------------------------------------------------------------------------------------


async def test_a_watch_is_a_snapshot_then_every_change(world: World) -> None:
    call = world.models.WatchModels(pb.WatchModelsRequest())
    first = await call.read()
    for state in (ModelState.QUEUED, ModelState.LOADING, ModelState.LOADED):
        world.registry.set("tiny", state=state)
    changes = [await call.read() for _ in range(3)]

    assert [m.name for m in first.snapshot.models] == ["big", "tiny"]
    assert first.snapshot.memory.limit_bytes == 10_000
    assert [m.sequence for m in (first, *changes)] == [0, 1, 2, 3]
    assert [m.changed.state for m in changes] == [
        pb.MODEL_STATE_QUEUED,
        pb.MODEL_STATE_LOADING,
        pb.MODEL_STATE_LOADED,
    ]
    call.cancel()
    await eventually(lambda: not world.registry.subscribers)


async def test_a_watch_of_names_sees_only_those_also_by_alias(world: World) -> None:
    call = world.models.WatchModels(pb.WatchModelsRequest(names=["small"]))
    first = await call.read()
    world.registry.set("big", state=ModelState.QUEUED)
    world.registry.set("tiny", state=ModelState.QUEUED)
    change = await call.read()
    assert [m.name for m in first.snapshot.models] == ["tiny"]
    assert change.changed.name == "tiny"
    call.cancel()


async def test_a_watch_tells_of_a_model_that_left_the_registry(world: World) -> None:
    call = world.models.WatchModels(pb.WatchModelsRequest(names=["tiny"]))
    await call.read()
    world.registry.set("tiny", removed=True)
    message = await call.read()
    assert (message.WhichOneof("event"), message.removed_name) == ("removed_name", "tiny")
    call.cancel()


async def test_a_watch_of_an_unknown_name_is_not_found(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.models.WatchModels(pb.WatchModelsRequest(names=["tiny", "nope"])).read()
    assert reason_of(caught.value) == "MODEL_NOT_FOUND"
    assert world.registry.subscribers == []


async def test_a_watch_ends_with_the_server(world: World) -> None:
    call = world.models.WatchModels(pb.WatchModelsRequest())
    await call.read()
    world.server.end_watches()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), 5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason_of(caught.value) == "SERVER_SHUTDOWN"
    assert world.registry.subscribers == []
