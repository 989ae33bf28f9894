"""Embeddings as the rpc room sees it: one answer for all requests, which are noted."""

from inferd_server.core.embedding import Embedding, EmbedRequest
from inferd_server.core.generation import ServedModel, Usage
from inferd_server.core.observer import GenerationObserver
from inferd_server.serving.callers import Caller


class FakeEmbeddings:
    """Answers each text with two numbers. `error` is raised if set; `requests` and `deadlines` note what came."""

    def __init__(self) -> None:
        self.requests: list[EmbedRequest] = []
        self.deadlines: list[float | None] = []
        self.error: Exception | None = None

    async def embed(
        self,
        request: EmbedRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver | None = None,
    ) -> Embedding:
        self.requests.append(request)
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error
        vectors = tuple(bytes(8) for _ in request.texts)
        model = ServedModel(request.model, "r1", 3)
        return Embedding(request.request_id or "made-up", model, 2, vectors, (1,), Usage(prompt_tokens=9), 1)
