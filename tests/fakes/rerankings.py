"""Rerankings as the rpc room sees it: one answer for all requests, which are noted."""

from inferd_server.core.generation import ServedModel, Usage
from inferd_server.core.observer import GenerationObserver
from inferd_server.core.reranking import Reranking, RerankRequest, Scored
from inferd_server.serving.callers import Caller


class FakeRerankings:
    """Turns the documents' order around. `error` is raised if set; `requests` and `deadlines` note what came."""

    def __init__(self) -> None:
        self.requests: list[RerankRequest] = []
        self.deadlines: list[float | None] = []
        self.error: Exception | None = None

    async def rerank(
        self,
        request: RerankRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver | None = None,
    ) -> Reranking:
        self.requests.append(request)
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error
        best = tuple(Scored(i, i / 4) for i in reversed(range(len(request.documents))))
        model = ServedModel(request.model, "r1", 3)
        return Reranking(request.request_id or "made-up", model, best, (1,), Usage(prompt_tokens=9), 1)
