"""grpc.health.v1, derived at each look from the phase and the registry (docs/semantics.md §9); nothing is stored.

The library's servicer is not used: its watches can't be ended, and its statuses would have to be kept in step.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from inferd_server.core.access import FULL_ACCESS, Access
from inferd_server.core.errors import InferdError, echo
from inferd_server.core.model import ModelState
from inferd_server.registry.registry import ModelSnapshot, Registry
from inferd_server.serving.lifecycle import Lifecycle, Phase

from .interceptors.call import Context, current_caller
from .visible import Visible

LIVENESS = frozenset({"", "liveness"})
READINESS = frozenset({"readiness", "inferd.v1.InferenceService"})
MODEL_SERVICE = "inferd.v1.ModelService"
MODEL_PREFIX = "inferd.v1.Model/"


class Health:
    """The status of each name, now."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry) -> None:
        self._lifecycle = lifecycle
        self._registry = registry

    def is_serving(self, name: str, access: Access = FULL_ACCESS) -> bool | None:
        """Whether `name` serves; None for an unknown name, and for a model that `access` does not let see."""
        if name in LIVENESS:
            return True
        if name in READINESS:
            return self._lifecycle.phase is Phase.READY and self._can_serve()
        if name == MODEL_SERVICE:
            return self._lifecycle.phase <= Phase.READY
        return self._serves_model(name.removeprefix(MODEL_PREFIX), access) if name.startswith(MODEL_PREFIX) else None

    def names(self, access: Access = FULL_ACCESS) -> list[str]:
        """Every name, models by their canonical names."""
        models = [MODEL_PREFIX + model.entry.name for model in Visible(self._registry, access).models()]
        return [*sorted(LIVENESS | READINESS), MODEL_SERVICE, *models]

    @contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever a status may have changed."""
        event = asyncio.Event()
        states: dict[str, tuple[ModelState, bool, bool]] = {}

        def note(model: ModelSnapshot) -> None:
            state = (model.state, model.removed, _is_stuck(model))
            if states.get(model.entry.name) != state:  # progress changes no status
                states[model.entry.name] = state
                event.set()

        ends = (self._lifecycle.subscribe(lambda _: event.set()), self._registry.subscribe(note))
        try:
            yield event
        finally:
            for end in ends:
                end()

    def _can_serve(self) -> bool:
        """False only where every model is stuck. One that failed in any other way is loaded again by the next request,
        which would not come if nobody was sent here."""
        return not all(map(_is_stuck, self._registry.snapshot().models))

    def _serves_model(self, name: str, access: Access) -> bool | None:
        try:
            model = Visible(self._registry, access).model(name)
        except InferdError:
            return None
        return self._lifecycle.phase is Phase.READY and model.state is ModelState.LOADED


def _is_stuck(model: ModelSnapshot) -> bool:
    """It failed, and its engine still holds its memory: a step or an end that does not return."""
    return model.state is ModelState.FAILED and model.charged_nbytes > 0


def _status(serves: bool | None) -> pb.HealthCheckResponse:
    """The answer; `serves` None is an unknown name."""
    if serves is None:
        return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
    return pb.HealthCheckResponse(
        status=pb.HealthCheckResponse.SERVING if serves else pb.HealthCheckResponse.NOT_SERVING
    )


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Check, List, Watch."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """The status now; NOT_FOUND for an unknown name."""
        serves = self._health.is_serving(request.service, current_caller().access)
        if serves is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {echo(request.service)!r}")
        return _status(serves)

    async def List(self, request: object, context: Context) -> object:  # the stubs do not know List yet
        """Every status."""
        access = current_caller().access
        return pb.HealthListResponse(  # type: ignore[attr-defined]
            statuses={name: _status(self._health.is_serving(name, access)) for name in self._health.names(access)}
        )

    async def Watch(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        """The status at once and at each change; SERVICE_UNKNOWN while the name is unknown. A slow watcher misses
        what lies between; it ends with the server (interceptors/around.py)."""
        caller = current_caller()
        with self._health.changes() as changed:
            told: pb.HealthCheckResponse | None = None
            while True:
                status = _status(self._health.is_serving(request.service, caller.access))
                if status != told:
                    told = status
                    yield status
                else:
                    await changed.wait()
                    changed.clear()
