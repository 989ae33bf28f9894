"""InferenceService: generation and what belongs to it.

Order of checks (docs/semantics.md §8): phase and credentials (interceptors), strategy, existence, validation,
capability; then what needs the prompt's tokens, in serving.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from inferd.v1 import inference_service_pb2 as pb
from inferd.v1 import inference_service_pb2_grpc
from inferd_server.core.embedding import EmbedRequest
from inferd_server.core.errors import prompt_too_long
from inferd_server.core.generation import Delta, Event, Finished, GenerationRequest, Prompt, Started
from inferd_server.core.model import Clock, ModelEntry
from inferd_server.core.observer import both
from inferd_server.core.reranking import RerankRequest
from inferd_server.serving.embeddings import checked_embedder
from inferd_server.serving.lifecycle import Phase
from inferd_server.serving.rerankings import checked_reranker

from . import convert, convert_encoding, validate
from .capabilities import check_capabilities
from .contention import check_strategy, from_policy
from .enums import STRATEGY_VALUES
from .interceptors.call import Context, current_call, current_caller
from .services import ServerInfo, Services
from .times import to_timestamp
from .validate_options import is_too_long
from .visible import Visible
from .weight import run_weighed


class InferenceServicer(inference_service_pb2_grpc.InferenceServiceServicer):
    """Translates; every decision about a request is made in serving and below.

    `clock` is the one that Generations has its deadlines on.
    """

    def __init__(self, services: Services, *, clock: Clock = time.monotonic) -> None:
        self._generations = services.generations
        self._embeddings = services.embeddings
        self._rerankings = services.rerankings
        self._registry = services.registry
        self._lifecycle = services.lifecycle
        self._info = services.info
        self._clock = clock

    async def StreamGenerate(
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        """One started, any deltas, one finished; errors name the last sequence number that was sent."""
        generation = await self._accept(request)
        facts = current_call().facts
        sequence = 0
        async with aclosing(self._events(generation, context)) as events:
            async for event in events:
                yield convert.from_event(sequence, event)
                facts["last_sequence"] = sequence
                sequence += 1

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        """The same stream of events, put together."""
        generation = await self._accept(request)
        response = pb.GenerateResponse()
        pieces: list[str] = []
        reasoning: list[str] = []
        async with aclosing(self._events(generation, context)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    pieces.append(event.text)
                    reasoning.append(event.reasoning)
                    response.tool_calls.extend(convert.from_tool_call(each.call) for each in event.tool_calls)
                    response.token_ids.extend(event.token_ids)
                    response.logprobs.extend(map(convert.from_logprob, event.logprobs))
                elif isinstance(event, Started | Finished):
                    response.MergeFrom(convert.from_edge(event))
        response.text = "".join(pieces)
        response.reasoning = "".join(reasoning)
        return response

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """All vectors in one answer."""
        info = self._info.for_caller(current_caller())
        check_strategy(request.scheduling.contention, info)
        entry = self._resolve(request.model)
        # Checking and converting a full message takes tens of milliseconds.
        checked = await asyncio.to_thread(_checked_texts, request, entry, info)
        call = current_call()
        call.trace.asked(checked)
        embedding = await self._embeddings.embed(
            checked,
            caller=current_caller(),
            deadline=self._deadline(context),
            observer=both(call.account, call.trace),
        )
        call.account.served(embedding.model)
        call.request_id = embedding.request_id
        return convert_encoding.from_embedding(embedding)

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        """All scores in one answer."""
        info = self._info.for_caller(current_caller())
        check_strategy(request.scheduling.contention, info)
        entry = self._resolve(request.model)
        checked = await asyncio.to_thread(_checked_documents, request, entry, info)
        call = current_call()
        call.trace.asked(checked)
        reranking = await self._rerankings.rerank(
            checked,
            caller=current_caller(),
            deadline=self._deadline(context),
            observer=both(call.account, call.trace),
        )
        call.account.served(reranking.model)
        call.request_id = reranking.request_id
        return convert_encoding.from_reranking(reranking, checked.documents if request.return_documents else ())

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Counts without loading weights."""
        entry = self._resolve(request.model)
        info = self._info.for_caller(current_caller())
        prompt = await run_weighed(request, lambda: _checked_prompt(request, entry, info))
        ids, context_length = await self._generations.tokenize(entry.name, prompt)
        return pb.TokenizeResponse(
            count=len(ids), token_ids=ids if request.return_ids else (), context_length=context_length
        )

    async def CancelGeneration(
        self, request: pb.CancelGenerationRequest, context: Context
    ) -> pb.CancelGenerationResponse:
        """Idempotent: an id that is not in flight is no error; nor is one of another key's."""
        validate.check_cancel(request)
        cancelled = self._generations.cancel(request.request_id, current_caller().id)
        return pb.CancelGenerationResponse(cancelled=cancelled)

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Answers in every phase."""
        info = self._info.for_caller(current_caller())
        return pb.GetServerInfoResponse(
            server_version=info.version,
            mlx_version=info.mlx_version,
            device=info.device,
            start_time=to_timestamp(info.start_time),
            default_contention=from_policy(info.policy),
            allowed_contention_strategies=sorted(STRATEGY_VALUES[strategy] for strategy in info.request_overrides),
            max_message_bytes=info.max_message_bytes,
            max_queue_length=info.max_queue,
            draining=self._lifecycle.phase > Phase.READY,
            image_limits=convert.from_media_limits(info.media_limits),
        )

    def _deadline(self, context: Context) -> float | None:
        """The caller's own, on this clock."""
        remaining: float | None = context.time_remaining()
        return None if remaining is None else self._clock() + remaining

    async def _accept(self, message: convert.GenerationMessage) -> GenerationRequest:
        info = self._info.for_caller(current_caller())
        check_strategy(message.scheduling.contention, info)
        entry = self._resolve(message.model)
        return await run_weighed(message, lambda: _checked(message, entry, info))

    def _resolve(self, model: str) -> ModelEntry:
        return Visible(self._registry, current_caller().access).resolve(model)

    async def _events(self, generation: GenerationRequest, context: Context) -> AsyncGenerator[Event, None]:
        call = current_call()
        deadline = self._deadline(context)
        call.trace.asked(generation)
        stream = self._generations.stream(
            generation, caller=current_caller(), deadline=deadline, observer=both(call.account, call.trace)
        )
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, Finished):
                    call.account.finished(event)
                elif isinstance(event, Started):
                    call.account.served(event.model)
                    call.request_id = event.request_id
                    call.facts.update(request_id=event.request_id, completion_tokens=0)
                yield event
                if isinstance(event, Delta):  # it has been written
                    call.facts["completion_tokens"] = event.completion_tokens


def _checked_texts(message: pb.EmbedRequest, entry: ModelEntry, info: ServerInfo) -> EmbedRequest:
    validate.check_embed(message, entry, info)
    request = convert_encoding.to_embed_request(message, info.policy)
    checked_embedder(request, entry)
    return request


def _checked_documents(message: pb.RerankRequest, entry: ModelEntry, info: ServerInfo) -> RerankRequest:
    validate.check_rerank(message, info)
    checked_reranker(entry)
    return convert_encoding.to_rerank_request(message, info.policy)


def _checked(message: convert.GenerationMessage, entry: ModelEntry, info: ServerInfo) -> GenerationRequest:
    template_variables = validate.check_generation(message, entry, info)
    check_capabilities(message, entry)
    _check_length(message, entry)
    return convert.to_generation_request(message, template_variables, info.policy, info.media_limits)


def _checked_prompt(message: pb.TokenizeRequest, entry: ModelEntry, info: ServerInfo) -> Prompt:
    template_variables = validate.check_tokenize(message, info)
    check_capabilities(message, entry)
    return convert.to_prompt(message, template_variables, info.media_limits)


def _check_length(message: convert.GenerationMessage, entry: ModelEntry) -> None:
    """Refuse too many token ids before they become Python objects: a full message holds millions."""
    ids = message.tokens.ids
    if is_too_long(ids, entry):
        raise prompt_too_long("tokens.ids", len(ids), entry.context_length)
