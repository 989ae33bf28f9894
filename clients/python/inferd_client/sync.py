"""The client for blocking code and threads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2

from inferd.v1 import inference_service_pb2, inference_service_pb2_grpc, model_service_pb2, model_service_pb2_grpc
from inferd_client import decoding, requests, results
from inferd_client.channel import DEFAULT_ADDRESS, HEALTH_CHECK, LOOK_UP_SECONDS, connection
from inferd_client.errors import from_rpc
from inferd_client.options import (
    ContentionOptions,
    EmbedOptions,
    GenerationOptions,
    Message,
    RerankOptions,
    State,
    StreamOptions,
    Tool,
    UnloadMode,
)
from inferd_client.transcript import Transcript

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Event = TypeVar("_Event")

if TYPE_CHECKING:
    from grpc import _CallIterator as _Call  # the type stubs' name for a call whose responses are iterated over


class Stream(Generic[_Response, _Event]):
    """An open stream of events: enter it, iterate over it; leaving the block cancels the call on the server."""

    def __init__(
        self,
        start: Callable[[], "_Call[_Response]"],
        decode: Callable[[_Response], _Event | None],
    ) -> None:
        self._start = start
        self._decode = decode
        self._call: _Call[_Response] | None = None

    def __enter__(self) -> Self:
        if self._call is not None:
            raise RuntimeError("a stream is entered once; call the client again for another")
        self._call = self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Ends the call; whoever reads the stream gets Cancelled. Does nothing after the end."""
        # Leaving a `for` alone ends nothing: the server would go on producing for nobody.
        if self._call is not None:
            self._call.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Event:
        while True:
            event = self._decode(self._next_response())
            if event is not None:
                return event

    def _next_response(self) -> _Response:
        if self._call is None:
            raise RuntimeError("enter the stream first: `with client.stream(...) as answer:`")
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise from_rpc(error) from error


class GenerationStream(Stream[inference_service_pb2.StreamGenerateResponse, results.Event]):
    """A streamed answer: iterate over its events, or over `text()`."""

    def __init__(self, start: Callable[[], "_Call[inference_service_pb2.StreamGenerateResponse]"]) -> None:
        self._transcript = Transcript()
        super().__init__(start, self._transcript.add)

    def __next__(self) -> results.Event:
        try:
            return super().__next__()
        except StopIteration:
            self._transcript.end()
            raise

    def text(self) -> Iterator[str]:
        """The new text of each delta that has any, up to the end."""
        for event in self:
            if isinstance(event, results.Delta) and event.text:
                yield event.text

    @property
    def started(self) -> results.Started | None:
        """Request id, model and prompt size; None before admission."""
        return self._transcript.started

    @property
    def result(self) -> results.Generation:
        """The whole answer, once the stream was read to its end; RuntimeError before."""
        return self._transcript.generation()


class Client:
    """A blocking client of one inferd server (or of several behind one name). Safe to share between threads.

    Every method raises InferdError; `timeout` is the call's deadline in seconds, None for none; only
    the calls that merely look something up have one by default.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
        plaintext_key: bool = False,
    ) -> None:
        """Connects at the first call.

        Args:
            address: `host:port`, `unix:/path`, or any gRPC target.
            credentials: TLS, as `tls_credentials` makes them; None for plaintext.
            api_key: None: that of the variable INFERD_API_KEY, if there is one. Without TLS it is sent only to an
                address on this machine.
            plaintext_key: send it in clear over a network all the same.
        """
        self._connection = connection(address, credentials, api_key, plaintext_key=plaintext_key)
        self._stubs = _Stubs(self._connection.open_channel())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends open calls and the connection. Idempotent."""
        self._stubs.channel.close()

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[GenerationOptions],
    ) -> results.Generation:
        """Runs a prompt, a chat or token ids to the end."""
        request = requests.generate(model, prompt, messages, token_ids, options)
        return decoding.generation(self._unary(self._stubs.inference.Generate, request, timeout))

    def stream(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[StreamOptions],
    ) -> GenerationStream:
        """Streams an answer: `with client.stream(...) as answer: for text in answer.text(): ...`."""
        request = requests.stream(model, prompt, messages, token_ids, options)
        return GenerationStream(
            lambda: self._stubs.inference.StreamGenerate(request, timeout=timeout, metadata=self._connection.metadata)
        )

    def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> results.Embedding:
        """One vector per text (at most 4,096 in a call)."""
        request = requests.embed(model, texts, options)
        return decoding.embedding(self._unary(self._stubs.inference.Embed, request, timeout))

    def rerank(
        self,
        model: str,
        query: str,
        documents: Sequence[str],
        *,
        timeout: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> results.Reranking:
        """Orders documents (at most 4,096 in a call) by how well each answers the query."""
        request = requests.rerank(model, query, documents, options)
        return decoding.reranking(self._unary(self._stubs.inference.Rerank, request, timeout), request.documents)

    def tokenize(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        return_ids: bool = False,
        tools: Sequence[Tool] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        timeout: float | None = LOOK_UP_SECONDS,
    ) -> results.Tokens:
        """Counts the tokens of a prompt or of a rendered chat; loads no weights."""
        request = requests.tokenize(model, prompt, messages, return_ids, tools, template_variables)
        return decoding.tokens(self._unary(self._stubs.inference.Tokenize, request, timeout))

    def cancel(self, request_id: str, *, timeout: float | None = LOOK_UP_SECONDS) -> bool:
        """Cancels a request by its id, from any connection; False if none of that id was in flight."""
        request = inference_service_pb2.CancelGenerationRequest(request_id=request_id)
        return (self._unary(self._stubs.inference.CancelGeneration, request, timeout)).cancelled

    def server_info(self, *, timeout: float | None = LOOK_UP_SECONDS) -> results.ServerInfo:
        """Version, limits and defaults of the server."""
        request = inference_service_pb2.GetServerInfoRequest()
        return decoding.server_info(self._unary(self._stubs.inference.GetServerInfo, request, timeout))

    def models(self, *, states: Iterable[State] = (), timeout: float | None = LOOK_UP_SECONDS) -> results.ModelList:
        """All models by name (only those in `states`, if any are given), and the memory budget."""
        request: model_service_pb2.ListModelsRequest | None = requests.list_models(states)
        pages = []
        while request is not None:
            pages.append(self._unary(self._stubs.models.ListModels, request, timeout))
            request = requests.next_page(request, pages[-1])
        return decoding.model_list(pages)

    def model(self, name: str, *, timeout: float | None = LOOK_UP_SECONDS) -> results.Model:
        """One model, by name or alias."""
        request = model_service_pb2.GetModelRequest(name=name)
        return decoding.model((self._unary(self._stubs.models.GetModel, request, timeout)).model)

    def load(
        self,
        name: str,
        *,
        detach: bool = False,
        validate_only: bool = False,
        pin: bool | None = None,
        reload: bool = False,
        timeout: float | None = None,
        **contention: Unpack[ContentionOptions],
    ) -> results.LoadResult:
        """Makes a model resident and waits for it.

        Args:
            name: name or alias.
            detach: return at once and follow with `model` or `watch`.
            validate_only: answer whether it would fit; change nothing.
            pin: pin or unpin it.
            reload: load again even if it is resident.
            timeout: bounds the wait, not a load that has started.
            contention: how to make room.
        """
        request = requests.load(
            name, detach=detach, validate_only=validate_only, pin=pin, reload=reload, contention=contention
        )
        return decoding.load_result(self._unary(self._stubs.models.LoadModel, request, timeout))

    def unload(
        self,
        name: str,
        *,
        mode: UnloadMode | None = None,
        drain_timeout: float | None = None,
        timeout: float | None = None,
    ) -> results.UnloadResult:
        """Makes a model non-resident and returns when its memory is free; mode: drain, if_idle or force."""
        request = requests.unload(name, mode, drain_timeout)
        return decoding.unload_result(self._unary(self._stubs.models.UnloadModel, request, timeout))

    def watch(
        self, *names: str, timeout: float | None = None
    ) -> Stream[model_service_pb2.WatchModelsResponse, results.RegistryEvent]:
        """Streams the registry (only `names`, if any): a snapshot, then every change. A context manager."""
        request = model_service_pb2.WatchModelsRequest(names=names)
        return Stream(
            lambda: self._stubs.models.WatchModels(request, timeout=timeout, metadata=self._connection.metadata),
            decoding.registry_event,
        )

    def health(self, service: str = "", *, timeout: float | None = LOOK_UP_SECONDS) -> str:
        """Health of a service (`readiness`, `inferd.v1.Model/NAME`): serving, not_serving, or service_unknown."""
        request = health_pb2.HealthCheckRequest(service=service)
        return decoding.health(self._unary(self._stubs.health, request, timeout))

    def _unary(
        self, method: "grpc.UnaryUnaryMultiCallable[_Request, _Response]", request: _Request, timeout: float | None
    ) -> _Response:
        call = method.future(request, timeout=timeout, metadata=self._connection.metadata)
        try:
            return call.result()
        except grpc.RpcError as error:
            raise from_rpc(error) from error
        finally:
            # After Ctrl-C the server must not go on for nobody; after the end this does nothing.
            call.cancel()


class _Stubs:
    """A channel and what can be called on it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.inference = inference_service_pb2_grpc.InferenceServiceStub(channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.health: grpc.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse] = (
            channel.unary_unary(
                HEALTH_CHECK,
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
        )
