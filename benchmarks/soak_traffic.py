"""The traffic of the soak: callers who ask for all there is, an operator who meddles, watchers who only look."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import inference_service_pb2_grpc, model_service_pb2_grpc
from inferd.v1 import model_service_pb2 as mod

TEXTS = ("one", "two", "three")
EYES, EMBEDDER = "eyes", "embedder"
MODELS = (*TEXTS, EYES, EMBEDDER)
STEADY = "steady"
"""Pinned, and nobody's but the one caller's whose times are compared: no load and no eviction blurs them."""
STRATEGIES = tuple(value for value in gen.ContentionStrategy.values() if value)
CALL_LIMIT_S = 120.0
"""A call that takes so long is stuck."""
QUIET_S = 1.0
SCHEMA = (
    '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}'
)
TOOL = gen.Tool(name="get_time", description="What time it is.", parameters_json='{"type": "object"}')
CONTENTION = {"CAPACITY_EXHAUSTED", "WAIT_TIMEOUT", "QUEUE_FULL", "PREEMPTED", "MODEL_UNLOADED"}
"""What any call may meet where five models share the room of three, and an operator unloads them."""
ALLOWED: dict[str, set[str]] = {
    "cancel": {"CANCELLED_BY_REQUEST"},
    "deadline": {"DEADLINE_EXCEEDED"},
    "leave": {"CANCELLED"},
    "nonsense": {"INVALID_PARAMETER", "MODEL_NOT_FOUND", "PROMPT_TOO_LONG", "CAPABILITY_MISSING"},
    "not_resident": {"MODEL_NOT_LOADED"},
    "operate": {"MODEL_BUSY", "MODEL_PINNED", "DRAIN_TIMEOUT"},
}


@dataclass
class Seen:
    """What came of everything.

    Attributes:
        ends: how often what came of which kind of call.
        first: (when, seconds to the first token) of the steady caller's streams; `gaps` likewise between tokens.
        probes: (when, seconds) of health checks.
        faults: what should not have been.
    """

    ends: Counter[str] = field(default_factory=Counter)
    first: list[tuple[float, float]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    probes: list[tuple[float, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def end_of(error: grpc.aio.AioRpcError) -> str:
    """The reason of an error of the server, else its code."""
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status else ():
        if detail.Unpack(info):
            return str(info.reason)
    return str(error.code().name)


class Traffic:
    """Everybody, over one channel each, until `end` (of time.monotonic)."""

    def __init__(self, address: str, end: float, image: bytes, seed: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._open = lambda: grpc.aio.insecure_channel(address, options=options)
        self._end, self._image, self._seed = end, image, seed
        self._right: dict[tuple[str, int], list[int]] = {}
        self.seen = Seen()

    async def run(self, callers: int, more: Callable[[], Awaitable[None]]) -> None:
        """All of them; `more` runs beside them and should end with them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(more())  # type: ignore[arg-type]
            group.create_task(self._operate(random.Random(f"{self._seed}/operator")))
            group.create_task(self._pulse())
            group.create_task(self._probe())
            group.create_task(self._watch())
            for number in range(callers):
                group.create_task(self._call(random.Random(f"{self._seed}/{number}")))

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    # --- callers

    async def _call(self, dice: random.Random) -> None:
        kinds = {
            self.stream: 6, self.known: 3, self.unary: 2, self.converse: 1, self.constrained: 1, self.tools: 1,
            self.embed: 2, self.see: 1, self.leave: 2, self.cancel: 1, self.deadline: 1, self.nonsense: 1,
            self.not_resident: 1, self.tokenize: 1,
        }  # fmt: skip
        while not self.is_over:
            async with self._open() as channel:
                stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
                for _ in range(dice.randint(1, 50)):  # a client comes, asks a few times, and goes
                    (kind,) = dice.choices(list(kinds), list(kinds.values()))
                    await self.bounded(kind.__name__, kind(stub, dice))
                    if self.is_over:
                        break

    async def bounded(self, name: str, call: Awaitable[Any]) -> None:
        """Note how it ended; an end that nobody provoked is a fault."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                await call
            end = "OK"
        except grpc.aio.AioRpcError as error:
            end = end_of(error)
            if end not in CONTENTION | ALLOWED.get(name, set()):
                self.seen.faults.append(f"{name}: {end} {error.details()}")
        except TimeoutError:
            end = "STUCK"
            self.seen.faults.append(f"{name}: stuck for {CALL_LIMIT_S:.0f} s")
        self.seen.ends[f"{name} {end}"] += 1

    def _request(self, dice: random.Random, model: str = "") -> inf.StreamGenerateRequest:
        request = inf.StreamGenerateRequest(
            request_id=f"soak-{dice.getrandbits(64):x}",
            model=model or dice.choice(TEXTS),
            prompt="".join(dice.choices("abcdefgh ", k=dice.choice((5, 50, 400, 1500)))),
            sampling=gen.SamplingOptions(temperature=dice.choice((0.0, 1.0)), seed=dice.getrandbits(32)),
            stop=gen.StopOptions(max_tokens=dice.randint(1, 120), ignore_eos=True),
            output=gen.OutputOptions(token_ids=True),
        )
        if dice.random() < 0.3:
            request.sampling.MergeFrom(gen.SamplingOptions(top_p=0.9, top_k=40, repetition_penalty=1.1))
        if dice.random() < 0.1:
            request.output.top_logprobs = 3
        if dice.random() < 0.2:
            request.stop.sequences.extend(["zq", "xx"])
        if dice.random() < 0.5:
            request.scheduling.contention.strategy = dice.choice(STRATEGIES)
            request.scheduling.contention.wait_timeout.CopyFrom(Duration(seconds=dice.choice((2, 5, 20))))
            request.scheduling.priority = dice.choice((0, 0, 5, -5))
        request.stream.waiting_events = dice.random() < 0.3
        return request

    async def stream(self, stub: Any, dice: random.Random, request: Any = None) -> list[int]:
        """To its end; the order of its events is checked, and the steady caller's times are noted."""
        request = request or self._request(dice)
        begun = last = time.monotonic()
        kinds: list[str] = []
        ids: list[int] = []
        gaps: list[float] = []
        async for message in stub.StreamGenerate(request):
            kinds.append(message.WhichOneof("event"))
            if kinds[-1] == "delta":
                now = time.monotonic()
                gaps.append(now - last)
                last = now
                ids += message.delta.token_ids
        rest = [kind for kind in kinds if kind != "waiting"]
        if rest[:1] != ["started"] or rest[-1:] != ["finished"] or set(rest[1:-1]) - {"delta"}:
            self.seen.faults.append(f"order of events: {kinds[:3]} ... {kinds[-3:]}")
        if gaps and request.model == STEADY:
            self.seen.first.append((begun, gaps[0]))
            self.seen.gaps += [(begun, gap) for gap in gaps[1:]]
        return ids

    async def known(self, stub: Any, dice: random.Random) -> None:
        """A request that has one right answer, whatever happened before and meanwhile."""
        model, number = dice.choice(TEXTS), dice.randint(0, 4)
        request = self._request(random.Random(number), model)
        request.ClearField("scheduling")
        request.request_id = ""
        ids = await self.stream(stub, dice, request)
        if self._right.setdefault((model, number), ids) != ids:
            self.seen.faults.append(f"model {model} answered question {number} otherwise than before")

    async def unary(self, stub: Any, dice: random.Random) -> None:
        """The whole answer at once."""
        request = self._request(dice)
        request.ClearField("stream")
        answer = await stub.Generate(inf.GenerateRequest.FromString(request.SerializeToString()))
        if not request.stop.sequences and answer.usage.completion_tokens != request.stop.max_tokens:
            self.seen.faults.append(f"{answer.usage.completion_tokens} tokens of {request.stop.max_tokens}")

    async def converse(self, stub: Any, dice: random.Random) -> None:
        """A few turns of one session, each with the last one's answer in its prompt."""
        request = self._request(dice)
        request.session_id = f"session-{dice.randint(0, 20)}"
        for _ in range(3):
            answer = await stub.Generate(self._as_unary(request))
            request.prompt = (request.prompt + answer.text)[-3000:]
            request.request_id = ""

    def _as_unary(self, request: inf.StreamGenerateRequest) -> inf.GenerateRequest:
        plain = inf.StreamGenerateRequest()
        plain.CopyFrom(request)
        plain.ClearField("stream")
        return inf.GenerateRequest.FromString(plain.SerializeToString())

    async def constrained(self, stub: Any, dice: random.Random) -> None:
        """An output that has to be something."""
        request = self._request(dice)
        request.stop.ignore_eos = False
        del request.stop.sequences[:]
        kind, text = dice.choice(
            (("json_schema", SCHEMA), ("regex", "[a-f]{3,30}"), ("lark_grammar", 'start: "a" | "b"'))
        )
        setattr(request.output.constraint, kind, text)
        await self.stream(stub, dice, request)

    async def tools(self, stub: Any, dice: random.Random) -> None:
        """A chat with tools on offer."""
        request = self._request(dice, "one")
        text = gen.ContentPart(text="What time is it?")
        request.chat.CopyFrom(gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=[text])], tools=[TOOL]))
        await self.stream(stub, dice, request)

    async def see(self, stub: Any, dice: random.Random) -> None:
        """A chat with a picture."""
        request = self._request(dice, EYES)
        parts = [
            gen.ContentPart(image=gen.Blob(mime_type="image/png", data=self._image)),
            gen.ContentPart(text="what?"),
        ]
        request.chat.CopyFrom(gen.ChatInput(messages=[gen.ChatMessage(role=gen.ROLE_USER, parts=parts)]))
        await self.stream(stub, dice, request)

    async def embed(self, stub: Any, dice: random.Random) -> None:
        """Vectors of a few texts."""
        texts = [
            " ".join(dice.choices(("cat", "dog", "mat"), k=dice.randint(1, 20))) for _ in range(dice.randint(1, 30))
        ]
        answer = await stub.Embed(inf.EmbedRequest(model=EMBEDDER, texts=texts))
        if len(answer.vectors_f32le) != len(texts):
            self.seen.faults.append(f"{len(answer.vectors_f32le)} vectors of {len(texts)}")

    async def tokenize(self, stub: Any, dice: random.Random) -> None:
        """A count without weights."""
        await stub.Tokenize(inf.TokenizeRequest(model=dice.choice(TEXTS), prompt="x" * dice.randint(1, 5000)))

    async def leave(self, stub: Any, dice: random.Random) -> None:
        """Read a little and go."""
        call = stub.StreamGenerate(self._request(dice))
        leave_after = dice.randint(0, 20)
        count = 0
        async for _ in call:
            count += 1
            if count > leave_after:
                break
        call.cancel()

    async def cancel(self, stub: Any, dice: random.Random) -> None:
        """Cancel by id, in the middle."""
        request = self._request(dice)
        async for _ in stub.StreamGenerate(request):
            await stub.CancelGeneration(inf.CancelGenerationRequest(request_id=request.request_id))

    async def deadline(self, stub: Any, dice: random.Random) -> None:
        """Have less time than it takes."""
        async for _ in stub.StreamGenerate(self._request(dice), timeout=dice.uniform(0.001, 0.2)):
            pass

    async def not_resident(self, stub: Any, dice: random.Random) -> None:
        """Only if it is loaded anyway."""
        request = self._request(dice)
        request.scheduling.load_if_needed = False
        await self.stream(stub, dice, request)

    async def nonsense(self, stub: Any, dice: random.Random) -> None:
        """What has to be refused."""
        request = self._request(dice)
        match dice.randint(0, 5):
            case 0:
                request.sampling.temperature = float("nan")
            case 1:
                request.tokens.ids.append(2**31)
            case 2:
                request.model = "no-such-model"
            case 3:
                request.prompt = "x" * 100_000
            case 4:
                request.model = EMBEDDER
            case _:
                request.stop.sequences.append("")
        async for message in stub.StreamGenerate(request):
            self.seen.faults.append(f"accepted: {str(message)[:80]} for {str(request)[:200]}")

    # --- the steady caller, the operator and the watchers

    async def _pulse(self) -> None:
        request = inf.StreamGenerateRequest(model=STEADY, prompt="steady " * 8)
        request.stop.MergeFrom(gen.StopOptions(max_tokens=24, ignore_eos=True))
        async with self._open() as channel:
            stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
            while not self.is_over:
                await self.bounded("steady", self.stream(stub, random.Random(0), request))
                await asyncio.sleep(0.3)

    async def _operate(self, dice: random.Random) -> None:
        async with self._open() as channel:
            stub = model_service_pb2_grpc.ModelServiceStub(channel)
            while not self.is_over:
                await asyncio.sleep(dice.uniform(0.5, 3))
                await self.bounded("operate", self._meddle(stub, dice))
            for name in MODELS:
                await self.bounded("operate", stub.LoadModel(mod.LoadModelRequest(name=name, pin=False, detach=True)))

    async def _meddle(self, stub: Any, dice: random.Random) -> None:
        name = dice.choice(MODELS)
        drain = Duration(seconds=2)
        load, unload = mod.LoadModelRequest, mod.UnloadModelRequest
        request = dice.choice(
            [
                load(name=name),
                load(name=name, detach=True),
                load(name=name, reload=True),
                load(name=name, validate_only=True),
                load(name=name, pin=True, validate_only=False, detach=True),
                load(name=name, pin=False, detach=True),
                unload(name=name, mode=mod.UNLOAD_MODE_IF_IDLE),
                unload(name=name, mode=mod.UNLOAD_MODE_DRAIN, drain_timeout=drain),
                unload(name=name, mode=mod.UNLOAD_MODE_FORCE),
            ]
        )
        await (stub.LoadModel(request) if isinstance(request, load) else stub.UnloadModel(request))
        if isinstance(request, load) and request.pin:  # a pin for ever would leave too little room
            await asyncio.sleep(QUIET_S)
            await stub.LoadModel(load(name=name, pin=False, detach=True))

    async def _probe(self) -> None:
        async with self._open() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            while not self.is_over:
                begun = time.monotonic()
                await self.bounded("probe", self._check(stub))
                self.seen.probes.append((begun, time.monotonic() - begun))
                await asyncio.sleep(0.25)

    async def _check(self, stub: Any) -> None:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=10)
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            self.seen.faults.append(f"not ready: {answer}")

    async def _watch(self) -> None:
        """Watches of the registry, one after the other: each is gapless."""
        async with self._open() as channel:
            stub: Any = model_service_pb2_grpc.ModelServiceStub(channel)
            while not self.is_over:
                call = stub.WatchModels(mod.WatchModelsRequest())
                for number in range(200):
                    message = await call.read()
                    if message is grpc.aio.EOF or message.sequence != number:
                        self.seen.faults.append(f"watch: {message} is not number {number}")
                        break
                    if self.is_over:
                        break
                call.cancel()
                self.seen.ends["watch OK"] += 1
