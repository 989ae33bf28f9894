"""ModelService: the registry over the wire."""

import time
from collections.abc import AsyncGenerator

from inferd.v1 import model_service_pb2 as pb
from inferd.v1 import model_service_pb2_grpc
from inferd_server.core.model import Clock, UnloadMode

from . import validate
from .contention import check_strategy, to_policy
from .enums import MODEL_STATE_VALUES
from .interceptors.call import Context, current_caller
from .paging import last_name_of, page_token
from .services import Services
from .snapshots import from_memory, from_model
from .times import to_duration, to_seconds
from .visible import Visible
from .watch import Watch

DEFAULT_PAGE = 100
MAX_PAGE = 1000
UNLOAD_MODES = {
    pb.UNLOAD_MODE_UNSPECIFIED: UnloadMode.DRAIN,
    pb.UNLOAD_MODE_DRAIN: UnloadMode.DRAIN,
    pb.UNLOAD_MODE_IF_IDLE: UnloadMode.IF_IDLE,
    pb.UNLOAD_MODE_FORCE: UnloadMode.FORCE,
}


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):
    """Translates; looking never touches what is resident."""

    def __init__(self, services: Services, *, clock: Clock = time.monotonic) -> None:
        self._registry = services.registry
        self._info = services.info
        self._clock = clock

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """A page of the models by name, and the budget at the same moment."""
        last_name = self._last_name(request)
        size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        snapshot = self._registry.snapshot()
        visible = self._visible.among(snapshot.models)
        states = set(request.states)
        rest = [
            model
            for model in visible
            if model.entry.name > last_name and (not states or MODEL_STATE_VALUES[model.state] in states)
        ]
        return pb.ListModelsResponse(
            models=map(from_model, rest[:size]),
            next_page_token=page_token(rest[size - 1].entry.name, request.states) if len(rest) > size else "",
            memory=from_memory(snapshot.memory),
        )

    @property
    def _visible(self) -> Visible:
        return Visible(self._registry, current_caller().access)

    def _last_name(self, request: pb.ListModelsRequest) -> str:
        try:
            last_name, is_valid = last_name_of(request.page_token, request.states), True
        except ValueError:
            last_name, is_valid = "", False
        validate.check_list(request, token_is_valid=is_valid)
        return last_name

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """One model."""
        return pb.GetModelResponse(model=from_model(self._visible.model(request.name)))

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        """Returns when the model is ready. A caller that leaves ends its own wait, never a load."""
        info = self._info.for_caller(current_caller())
        check_strategy(request.contention, info)
        entry = self._visible.resolve(request.name)
        validate.check_load(request, info)
        outcome = await self._registry.load(
            entry.name,
            to_policy(request.contention, self._info.policy) if request.HasField("contention") else None,
            detach=request.detach,
            validate_only=request.validate_only,
            pin=request.pin if request.HasField("pin") else None,
            reload=request.reload,
        )
        return pb.LoadModelResponse(
            model=from_model(outcome.model),
            evicted_models=self._visible.named(outcome.evicted),
            load_time=None if outcome.load_seconds is None else to_duration(outcome.load_seconds),
            memory=from_memory(outcome.memory),
            fits=outcome.fits,
            missing_bytes=outcome.missing_nbytes,
            blocking_models=self._visible.named(outcome.blocking),
        )

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> pb.UnloadModelResponse:
        """Returns when the memory is free again."""
        entry = self._visible.resolve(request.name)
        validate.check_unload(request)
        drain_seconds = to_seconds(request.drain_timeout) if request.HasField("drain_timeout") else None
        outcome = await self._registry.unload(entry.name, UNLOAD_MODES[request.mode], drain_seconds)
        return pb.UnloadModelResponse(model=from_model(outcome.model), freed_bytes=outcome.freed_nbytes)

    async def WatchModels(
        self, request: pb.WatchModelsRequest, context: Context
    ) -> AsyncGenerator[pb.WatchModelsResponse, None]:
        """A snapshot, then every change; ends with the server (interceptors/around.py)."""
        validate.check_watch(request)
        caller = current_caller()
        names = frozenset(self._visible.resolve(name).name for name in request.names)
        # What the key may see is asked anew for each change: a reload may have changed that.
        watch = Watch(names, self._clock, lambda model: Visible(self._registry, caller.access).sees(model))
        unsubscribe = self._registry.subscribe(watch.offer)
        try:
            yield pb.WatchModelsResponse(sequence=0, snapshot=self._snapshot(watch))
            sequence = 1
            while True:
                model = await watch.next()
                if model is None:
                    yield pb.WatchModelsResponse(sequence=sequence, heartbeat=pb.WatchModelsResponse.Heartbeat())
                elif model.removed:
                    yield pb.WatchModelsResponse(sequence=sequence, removed_name=model.entry.name)
                else:
                    yield pb.WatchModelsResponse(sequence=sequence, changed=from_model(model))
                sequence += 1
        finally:
            unsubscribe()

    def _snapshot(self, watch: Watch) -> pb.WatchModelsResponse.Snapshot:
        snapshot = self._registry.snapshot()
        models = tuple(filter(watch.watches, snapshot.models))
        watch.begin(models)
        return pb.WatchModelsResponse.Snapshot(models=map(from_model, models), memory=from_memory(snapshot.memory))
