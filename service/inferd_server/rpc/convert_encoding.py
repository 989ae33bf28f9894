"""Embed and Rerank from the wire into core words, and their answers back; as convert.py does for generation."""

from collections.abc import Sequence

from inferd.v1 import inference_service_pb2
from inferd_server.core.embedding import Embedding, EmbedRequest, Truncation
from inferd_server.core.model import ContentionPolicy
from inferd_server.core.reranking import Reranking, RerankRequest

from .convert import from_served_model, from_usage, to_scheduling


def to_embed_request(message: inference_service_pb2.EmbedRequest, server_policy: ContentionPolicy) -> EmbedRequest:
    """A checked request; `server_policy` gives what its contention policy leaves unset."""
    return EmbedRequest(
        request_id=message.request_id,
        model=message.model,
        texts=tuple(message.texts),
        normalize=message.normalize if message.HasField("normalize") else None,
        truncation=_truncation(message),
        dimensions=message.dimensions,
        prompt_name=message.prompt_name,
        scheduling=to_scheduling(message.scheduling, server_policy),
    )


def from_embedding(embedding: Embedding) -> inference_service_pb2.EmbedResponse:
    """The vectors."""
    return inference_service_pb2.EmbedResponse(
        request_id=embedding.request_id,
        model=from_served_model(embedding.model),
        dimensions=embedding.dimensions,
        vectors_f32le=embedding.vectors,
        usage=from_usage(embedding.usage),
        truncated_texts=embedding.truncated,
        preemptions=embedding.preemptions,
    )


def to_rerank_request(message: inference_service_pb2.RerankRequest, server_policy: ContentionPolicy) -> RerankRequest:
    """A checked request; `server_policy` gives what its contention policy leaves unset."""
    return RerankRequest(
        request_id=message.request_id,
        model=message.model,
        query=message.query,
        documents=tuple(message.documents),
        top_n=message.top_n,
        truncation=_truncation(message),
        scheduling=to_scheduling(message.scheduling, server_policy),
    )


def from_reranking(reranking: Reranking, documents: Sequence[str]) -> inference_service_pb2.RerankResponse:
    """The results; with their documents, if these are given."""
    return inference_service_pb2.RerankResponse(
        request_id=reranking.request_id,
        model=from_served_model(reranking.model),
        results=[
            inference_service_pb2.RerankResult(
                index=each.index, score=each.score, document=documents[each.index] if documents else None
            )
            for each in reranking.best
        ],
        usage=from_usage(reranking.usage),
        truncated_documents=reranking.truncated,
        preemptions=reranking.preemptions,
    )


def _truncation(message: inference_service_pb2.EmbedRequest | inference_service_pb2.RerankRequest) -> Truncation:
    cuts = message.truncation == inference_service_pb2.TEXT_TRUNCATION_END
    return Truncation.END if cuts else Truncation.REFUSE
