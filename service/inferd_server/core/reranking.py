"""Words about reranking: a query, documents, and how well each answers it."""

from dataclasses import dataclass, field

from .embedding import Truncation
from .generation import SchedulingChoices, ServedModel, Usage


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A request that passed the checks of form (rpc/validate.py).

    Attributes:
        top_n: how many of the best are wanted; 0 for all.
        truncation: of documents; a query is never cut.
    """

    request_id: str
    model: str
    query: str
    documents: tuple[str, ...]
    top_n: int = 0
    truncation: Truncation = Truncation.REFUSE
    scheduling: SchedulingChoices = field(default_factory=SchedulingChoices)


@dataclass(frozen=True, slots=True)
class Scored:
    """A document by its index, and its score: higher is better."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Reranking:
    """The answer.

    Attributes:
        best: in order; equal scores by index.
        truncated: indices of the documents that were cut.
    """

    request_id: str
    model: ServedModel
    best: tuple[Scored, ...]
    truncated: tuple[int, ...]
    usage: Usage
    preemptions: int = 0
