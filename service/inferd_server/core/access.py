"""Words about who asks: keys, what each may do, and how much of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from .media import NO_MEDIA_LIMITS, MediaLimits
from .model import Strategy

MAX_NAME_CHARACTERS = 128
"""Of a model's name: longer text names none, and is not looked for."""
MAX_PRIORITY = 100


class MethodGroup(StrEnum):
    """What a key may call."""

    GENERATE = "generate"
    """InferenceService: Generate, StreamGenerate, Embed, Rerank, Tokenize, CancelGeneration."""
    OBSERVE = "observe"
    """ModelService: ListModels, GetModel, WatchModels."""
    ADMIN = "admin"
    """ModelService: LoadModel, UnloadModel."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one key, or all callers together, may use; None: none.

    Attributes:
        max_prompt_tokens: of one request.
        max_output_tokens: of one request.
        max_concurrent: inference RPCs in flight.
        requests_per_minute: inference RPCs taken.
        tokens_per_minute: of prompts and output together.
    """

    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller may do.

    Attributes:
        media_limits: they narrow the server's.
        models: patterns (`*` any characters, `?` one) of names and aliases: a model with one that matches is visible.
        strategies: of those that the server lets requests ask for; None: all of them.
    """

    models: tuple[str, ...] = ("*",)
    methods: frozenset[MethodGroup] = frozenset(MethodGroup)
    strategies: frozenset[Strategy] | None = None
    max_priority: int = MAX_PRIORITY
    limits: Limits = NO_LIMITS
    media_limits: MediaLimits = NO_MEDIA_LIMITS

    @property
    def sees_every_model(self) -> bool:
        """Whether there is no model that it may not see."""
        return "*" in self.models

    def sees(self, names: tuple[str, ...]) -> bool:
        """Whether it may see the model that has these names."""
        return self.sees_every_model or any(
            len(name) <= MAX_NAME_CHARACTERS and _matches(self.models, name) for name in names
        )


FULL_ACCESS = Access()
NO_ACCESS = Access(models=(), methods=frozenset())


@dataclass(frozen=True, slots=True)
class Key:
    """One key; of the key itself only its digest is known.

    Attributes:
        id: names it in logs.
        digest: SHA-256 of the key.
        expires: unix seconds; None: never.
    """

    id: str
    digest: bytes = field(repr=False)
    access: Access = FULL_ACCESS
    disabled: bool = False
    expires: float | None = None

    def is_valid(self, unix_seconds: float) -> bool:
        """Whether it opens anything now."""
        return not self.disabled and (self.expires is None or unix_seconds < self.expires)


@lru_cache(maxsize=8192)
def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
