"""What the wire stands on: the rooms below it, and plain facts about this server."""

from dataclasses import dataclass, field, replace

from inferd_server.core.access import MAX_PRIORITY
from inferd_server.core.media import MediaLimits
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.registry.registry import Registry
from inferd_server.serving.callers import Caller, Callers
from inferd_server.serving.embeddings import Embeddings
from inferd_server.serving.generations import Generations
from inferd_server.serving.lifecycle import Lifecycle
from inferd_server.serving.rerankings import Rerankings


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What GetServerInfo tells, and what requests are checked against.

    Attributes:
        start_time: start of the process, seconds since 1970.
        policy: the server's own contention policy.
        request_overrides: strategies that a request may ask for by itself.
        max_message_bytes: largest message accepted.
        max_queue: requests that may wait, all models together.
        media_limits: what the media of a request may amount to.
        max_priority: highest priority that a request may ask for.
        max_output_tokens: most that it may ask for; None: no bound but the context's.
    """

    version: str
    mlx_version: str
    device: str
    start_time: float
    policy: ContentionPolicy
    request_overrides: frozenset[Strategy]
    max_message_bytes: int
    max_queue: int
    media_limits: MediaLimits = field(default_factory=MediaLimits)
    max_priority: int = MAX_PRIORITY
    max_output_tokens: int | None = None

    def for_caller(self, caller: Caller) -> "ServerInfo":
        """The same as one caller meets it."""
        access = caller.access
        allowed = self.request_overrides
        return replace(
            self,
            request_overrides=allowed if access.strategies is None else allowed & access.strategies,
            media_limits=self.media_limits.narrowed(access.media_limits),
            max_priority=access.max_priority,
            max_output_tokens=caller.max_output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Services:
    """The rooms below the wire. `reflection` turns server reflection on."""

    generations: Generations
    embeddings: Embeddings
    rerankings: Rerankings
    registry: Registry
    lifecycle: Lifecycle
    info: ServerInfo
    callers: Callers = field(default_factory=Callers)
    reflection: bool = True
