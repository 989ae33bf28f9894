"""The registry as one caller sees it: a model that it may not see is not told from one that does not exist."""

from collections.abc import Iterable

from inferd_server.core.access import Access
from inferd_server.core.errors import model_denied
from inferd_server.core.model import ModelEntry
from inferd_server.registry.registry import ModelSnapshot, Registry


class Visible:
    """The models that `access` allows, by name and alias."""

    def __init__(self, registry: Registry, access: Access) -> None:
        self._registry = registry
        self._access = access

    def resolve(self, name: str) -> ModelEntry:
        """The entry of a name or alias.

        Raises:
            InferdError: MODEL_DENIED for every name outside the caller's models, whether or not there is one;
                MODEL_NOT_FOUND for one inside them that does not exist.
        """
        self._check(name)
        return self._registry.resolve(name)

    def model(self, name: str) -> ModelSnapshot:
        """One model now. Raises as `resolve` does."""
        self._check(name)
        return self._registry.model(name)

    def models(self) -> tuple[ModelSnapshot, ...]:
        """Every visible model by name."""
        return self.among(self._registry.snapshot().models)

    def among(self, models: tuple[ModelSnapshot, ...]) -> tuple[ModelSnapshot, ...]:
        """The visible ones of these."""
        return models if self._access.sees_every_model else tuple(model for model in models if self.sees(model))

    def sees(self, model: ModelSnapshot) -> bool:
        """Whether this one is visible."""
        return self._access.sees((model.entry.name, *model.entry.aliases))

    def may_name(self, name: str) -> bool:
        """Whether the caller may be told of the model called so."""
        return self._access.sees_every_model or self._access.sees(self._registry.names_of(name))

    def named(self, names: Iterable[str]) -> list[str]:
        """Those of the names that the caller may be told."""
        return [name for name in names if self.may_name(name)]

    def _check(self, name: str) -> None:
        if not self.may_name(name):
            raise model_denied(name, self._access.models)
