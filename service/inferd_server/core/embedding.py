"""Words about embedding: texts as the service understands them, and the vectors that come back."""

from dataclasses import dataclass, field
from enum import StrEnum

from .generation import SchedulingChoices, ServedModel, TokenLogprob, Usage


class Truncation(StrEnum):
    """What happens to a text that is longer than its model reads."""

    REFUSE = "refuse"
    END = "end"


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """A request that passed the checks of form (rpc/validate.py).

    Attributes:
        normalize: None means the model's default.
        dimensions: how many of each vector's numbers to keep; 0 for all.
        prompt_name: which of the model's prompts goes before each text; "" for its default.
    """

    request_id: str
    model: str
    texts: tuple[str, ...]
    normalize: bool | None = None
    truncation: Truncation = Truncation.REFUSE
    dimensions: int = 0
    prompt_name: str = ""
    scheduling: SchedulingChoices = field(default_factory=SchedulingChoices)


@dataclass(frozen=True, slots=True)
class Embedding:
    """The answer.

    Attributes:
        dimensions: numbers in each vector.
        vectors: one for each text, in order: little-endian float32.
        truncated: indices of the texts that were cut.
    """

    request_id: str
    model: ServedModel
    dimensions: int
    vectors: tuple[bytes, ...]
    truncated: tuple[int, ...]
    usage: Usage
    preemptions: int = 0


# --- what an engine is asked for, and what it answers -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """Token sequences for an engine, each to become one vector; every id lies inside the vocabulary.

    Attributes:
        texts: (index, ids), to be told apart in the answers; none is empty.
        dimensions: how many numbers of each vector to keep; 0 for all.
        second_from: where the second part of each text begins, the document behind a query; 0: it is one.
    """

    texts: tuple[tuple[int, tuple[int, ...]], ...]
    normalize: bool = True
    dimensions: int = 0
    second_from: int = 0

    @property
    def context_tokens(self) -> int:
        """Of the longest text."""
        return max(len(ids) for _, ids in self.texts)

    @property
    def total_tokens(self) -> int:
        """Of all texts."""
        return sum(len(ids) for _, ids in self.texts)

    @property
    def media_nbytes(self) -> int:
        """It has no media."""
        return 0


@dataclass(slots=True)
class Encoded:
    """Some vectors of the request `uid`: (index, little-endian float32).

    Attributes:
        ended: "all" with the last ones.
        failure: set when the request failed by itself; it is out of the engine.
    """

    uid: int
    vectors: list[tuple[int, bytes]]
    ended: str = ""
    failure: str = ""

    @property
    def logprob(self) -> TokenLogprob | None:
        """None: see core/work.py."""
        return None
