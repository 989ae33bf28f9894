"""All generation requests: what they need before an engine, and their streams."""

import functools
import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NoReturn

from inferd_server.core.errors import capability_missing
from inferd_server.core.generation import Event, GenerationRequest, Prompt
from inferd_server.core.model import Capability, Clock, ModelEntry
from inferd_server.core.observer import UNOBSERVED, GenerationObserver, Observer, both
from inferd_server.registry.registry import Registry
from inferd_server.text.constraints import Constraints
from inferd_server.text.texts import Texts

from .assembly import Assembly
from .callers import Caller, Callers
from .generation import Generation, PreparedPrompt
from .in_flight import InFlight
from .limits import check_prompt_ids, check_request, length_limit, resolve_sampling
from .pictures import Pictures
from .prompts import Bounds, encode
from .served_request import ServedOptions, Surroundings
from .splitting import splitter_for

COUNTED_CONTEXTS = 4
"""How many contexts long a prompt may be for Tokenize to count it."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The server's side of all requests."""

    requests: ServedOptions
    max_queue: int = 1024


class Generations:
    """Lives on the event loop.

    Args:
        in_flight: the table shared with requests of other kinds; None: one of its own.
        pictures: what prepares images; None: there are no vision models.
    """

    def __init__(
        self,
        registry: Registry,
        texts: Texts,
        options: ServingOptions,
        *,
        in_flight: InFlight | None = None,
        pictures: Pictures | None = None,
        clock: Clock = time.monotonic,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._registry = registry
        self._texts = texts
        self._pictures = pictures or Pictures(_load_nothing)
        self._constraints = Constraints()
        self._options = options
        self._clock = clock
        self._observer = observer
        self._in_flight = InFlight(options.max_queue) if in_flight is None else in_flight
        self._anonymous = Callers().anonymous

    async def stream(
        self,
        request: GenerationRequest,
        *,
        caller: Caller | None = None,
        deadline: float | None = None,
        observer: GenerationObserver = UNOBSERVED,
    ) -> AsyncGenerator[Event, None]:
        """Run a request: Waiting* Started Delta* Finished. Closing the generator cancels it.

        Args:
            request: an empty request_id is replaced by a fresh one.
            caller: whose it is; None: anybody's, without limits.
            deadline: when the caller's own deadline ends, on the clock given at construction.
            observer: told beside the one given at construction.

        Raises:
            InferdError: every other outcome.
        """
        self._in_flight.check_open()
        caller = caller or self._anonymous
        generation = self._enter(request, self._registry.resolve(request.model), caller, deadline, observer)
        with self._in_flight.holding(generation.request.request_id, generation, caller.id):
            async with aclosing(generation.events()) as events:
                async for event in events:
                    yield event

    def cancel(self, request_id: str, caller_id: str = "") -> bool:
        """End the caller's request of this id with CANCELLED_BY_REQUEST; whether there was one."""
        return self._in_flight.cancel(request_id, caller_id)

    async def tokenize(self, model: str, prompt: Prompt) -> tuple[list[int], int]:
        """The prompt's ids and the model's context length in tokens; loads no weights.

        Raises:
            InferdError: PROMPT_TOO_LONG far beyond the context: counting takes time and memory for each token.
        """
        entry = self._registry.resolve(model)
        tokenizer = await self._texts.get(entry)
        bounds = Bounds(COUNTED_CONTEXTS * entry.context_length, held_nbytes=self._in_flight.held_nbytes())
        encoded = await encode(prompt, entry, tokenizer, self._pictures, bounds)
        return encoded.ids, entry.context_length

    @property
    def in_flight(self) -> int:
        """How many requests are in flight, waiting ones included."""
        return len(self._in_flight)

    async def drain(self, timeout_seconds: float) -> int:
        """End all of them in order, those of other kinds too (`InFlight.drain`); returns how many were cut."""
        return await self._in_flight.drain(timeout_seconds)

    def _enter(
        self,
        request: GenerationRequest,
        entry: ModelEntry,
        caller: Caller,
        deadline: float | None,
        observer: GenerationObserver,
    ) -> Generation:
        request_id = request.request_id or str(uuid.uuid4())
        self._in_flight.check_new(request_id, caller.id)
        return Generation(
            replace(request, request_id=request_id),
            entry,
            functools.partial(self._prepare, caller),
            Surroundings(
                caller=caller,
                registry=self._registry,
                options=self._options.requests,
                in_flight=self._in_flight,
                clock=self._clock,
                deadline=deadline,
                observer=both(self._observer.generation(entry.name), observer),
            ),
        )

    async def _prepare(self, caller: Caller, request: GenerationRequest, entry: ModelEntry) -> PreparedPrompt:
        check_request(request, entry)
        tokenizer = await self._texts.get(entry)
        bounds = Bounds(entry.context_length, caller.max_prompt_tokens, self._in_flight.held_nbytes())
        prompt = await encode(request.prompt, entry, tokenizer, self._pictures, bounds)
        check_prompt_ids(request.prompt, prompt.ids, entry)
        limit = length_limit(request.stop, len(prompt.ids), entry, caller.max_output_tokens)
        constraint = request.output.constraint
        grammar = None if constraint is None else await self._constraints.compile(tokenizer, constraint)
        detokenizer = tokenizer.detokenizer(keeps_space=constraint is not None)
        splitter = await splitter_for(request, entry, prompt.rendered)
        stop_ids = frozenset(request.stop.token_ids)
        return PreparedPrompt(
            ids=tuple(prompt.ids),
            rendered=prompt.rendered,
            sampling=resolve_sampling(request.sampling, entry.defaults, secrets.randbits(64)),
            limit=limit,
            end_ids=stop_ids if request.stop.ignore_eos else stop_ids | tokenizer.end_ids,
            assembly=Assembly(detokenizer, request.stop.sequences, stop_ids, request.output, limit.reason, splitter),
            grammar=grammar,
            pictures=prompt.pictures,
        )


def _load_nothing(entry: ModelEntry) -> NoReturn:
    raise capability_missing(entry.name, Capability.VISION, "there are no vision models here")
