"""What the wire stands on: the rooms below it, and plain facts about this server."""

from dataclasses import dataclass, field

from inferd_server.core.media import MediaLimits
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.registry.registry import Registry
from inferd_server.serving.generations import Generations
from inferd_server.serving.lifecycle import Lifecycle


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


@dataclass(frozen=True, slots=True)
class Services:
    """The rooms below the wire. `reflection` turns server reflection on."""

    generations: Generations
    registry: Registry
    lifecycle: Lifecycle
    info: ServerInfo
    reflection: bool = True
